"""How the gallery runs an example and finds its figure."""

from pathlib import Path
from shutil import move

from build import ARGUMENTS, SOURCE
from sphinx_gallery.scrapers import figure_rst


class Saved:
    """The figure that an example saves if it gets ``--plot FILE``."""

    path = SOURCE / "figure.png"

    def __repr__(self) -> str:
        return "Saved()"

    def __call__(self, block, variables, settings) -> str:
        if not self.path.exists():
            return ""
        target = next(variables["image_path_iterator"])
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        move(self.path, target)
        return figure_rst([target], settings["src_dir"])


class Arguments:
    """Command line of an example."""

    def __repr__(self) -> str:
        return "Arguments()"

    def __call__(self, settings, variables) -> list[str]:
        path = Path(variables["src_file"])
        plot = ["--plot", str(Saved.path)] if '"--plot"' in path.read_text() else []
        return [*ARGUMENTS.get(path.stem, []), *plot]
