"""The one place that imports an optional dependency, or names the extra to install."""

from importlib import import_module
from typing import Any, Final

from kalstream.errors import MissingExtra

# Top-level package -> the extra of kalstream that installs it.
_EXTRAS: Final = {
    "torch": "torch",
    "river": "river",
    "PIL": "images",
    "matplotlib": "figures",
    "h5py": "hdf5",
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "ray": "ray",
    **dict.fromkeys(("fastapi", "uvicorn", "msgspec", "prometheus_client", "httpx2"), "serve"),
}


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra installs it.

    Parameters
    ----------
    module : str
        Dotted name of the module, such as ``"torch.nn"``.
    extra : str
        The extra of kalstream that installs it, such as ``"torch"``.

    Returns
    -------
    module
        The imported module itself, also for a dotted name.

    Raises
    ------
    MissingExtra
        If the module's top-level package is not installed. An installed package that lacks one of
        its own dependencies raises its own error, since installing the extra would not help.

    Examples
    --------
    >>> require("json", "torch").dumps([1, 2])
    '[1, 2]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise MissingExtra(
            f"{module!r} is needed here and the package {package!r} is not installed; "
            f"{_command(extra)}"
        ) from error


def remedy_for(error: BaseException) -> str:
    """The command that installs a missing package, to append to a message; "" if there is none.

    Examples
    --------
    >>> remedy_for(ModuleNotFoundError("No module named 'river'", name="river"))
    "; install it with: pip install 'kalstream[river]'"
    """
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"; {_command(_EXTRAS[package])}" if package in _EXTRAS else ""


def _command(extra: str) -> str:
    return f"install it with: pip install 'kalstream[{extra}]'"
