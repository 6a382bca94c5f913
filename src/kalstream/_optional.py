"""The one place that imports an optional dependency, or says which extra to install."""

from importlib import import_module
from typing import Any

from kalstream.errors import MissingExtra


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra brings it.

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
            f"install it with: pip install 'kalstream[{extra}]'"
        ) from error
