"""`kalstream embed`: images to an embedding file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from kalstream.cli.console import app, escaped, out

_HELP: Final = """
Turn images into an embedding file, which `kalstream run` reads.

Every image goes through the network once. After a stop or a kill, repeat the command to resume.

[bold]Examples[/bold]

  kalstream embed photos/ --weights mobilenet_v2-b0353104.pth       one subfolder per class

  kalstream embed cifar-100-python/ --layout cifar100 --size 160 --weights mobilenet_v2.pth

  kalstream embed photos/ --backbone timm:vit_small_patch14_dinov2  downloaded by timm

  kalstream run photos.safetensors                                  learn from the file
"""


@app.command(help=_HELP)
def embed(  # noqa: D103
    source: Annotated[Path, typer.Argument(help="Folder of the images.")],
    out_path: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write.", show_default="SOURCE.safetensors"),
    ] = None,
    layout: Annotated[
        Literal["folder", "cifar100", "clear", "cloc"],
        typer.Option(help="Layout of the folder: one subfolder per class, or that of a data set."),
    ] = "folder",
    split: Annotated[str, typer.Option(help="Split of a data set.")] = "train",
    backbone: Annotated[
        str, typer.Option(help="mobilenet_v2, resnet18, resnet50, or timm:NAME.")
    ] = "mobilenet_v2",
    weights: Annotated[
        Path | None,
        typer.Option(help="State dict of the network (.pth, .safetensors); not for timm."),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Images are resized to SIZE by SIZE.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    dtype: Annotated[
        Literal["float16", "float32"], typer.Option(help="Type of the features in the file.")
    ] = "float16",
    overwrite: Annotated[
        bool, typer.Option(help="Start over, and replace an existing file.")
    ] = False,
) -> None:
    from rich.progress import Progress

    from kalstream.deep.embed import embed as write
    from kalstream.deep.embed import named_backbone, open_images

    path = out_path or Path(f"{source.resolve().name}.safetensors")
    images, resize = open_images(source, layout, split, size)
    network = named_backbone(backbone, weights)
    with Progress(console=out) as bar:
        row = bar.add_task(escaped(path.name), total=images.n_rows)
        write(
            images,
            network,
            path,
            batch_size=batch_size,
            size=resize,
            device=device,
            dtype=dtype,
            progress=lambda done, n: bar.update(row, completed=done, total=n),
            resume=not overwrite,
        )
    order = "" if layout in ("clear", "cloc") else " --order shuffled"  # a folder is class by class
    out.print(f"{escaped(path)}; learn from it with: kalstream run {escaped(path)}{order}")
