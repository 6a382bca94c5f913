"""Tokens and their rights. Only hashes of tokens are kept."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from kalstream._files import write_whole
from kalstream._printable import quoted
from kalstream.errors import InvalidInput

RIGHTS: Final = ("read", "predict", "learn", "admin")
FILE: Final = "tokens.json"


def _hash(token: str) -> str:
    # Tokens are random, so a plain hash cannot be guessed back.
    return sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who may do what.

    Attributes
    ----------
    rights : {hash of a token: rights}
    """

    rights: dict[str, frozenset[str]]

    @classmethod
    def read(cls, folder: Path) -> Tokens:
        """The tokens of a service; none if there is no file."""
        path = folder / FILE
        if not path.exists():
            return cls({})
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls({each["sha256"]: frozenset(each["rights"]) for each in content.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{path} cannot be read ({error!r}); restore it from a copy, or delete it and make "
                "new tokens with kalstream token"
            ) from None

    def of(self, token: str) -> frozenset[str]:
        """The rights of a token; none if nobody has it."""
        found: frozenset[str] = frozenset()
        mine = _hash(token)
        for known, rights in self.rights.items():  # all, so that time tells nothing
            if hmac.compare_digest(known, mine):
                found = rights
        return found


def make_token(folder: Path, name: str, rights: Sequence[str]) -> str:
    """Make a token, keep its hash, and return it: nobody can read it again.

    A token of the same name is replaced. With no rights it is only removed.
    """
    for right in rights:
        if right not in RIGHTS:
            raise InvalidInput(f"{quoted(right)} is no right; give some of {', '.join(RIGHTS)}")
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    content.pop(name, None)
    token = f"ks-{secrets.token_urlsafe(32)}"
    if rights:
        content[name] = {"sha256": _hash(token), "rights": sorted(rights)}
    write_whole(path, json.dumps(content, indent=1))
    path.chmod(0o600)
    return token
