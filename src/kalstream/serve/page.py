"""The page at `/`, which asks the service for everything that it shows."""

from importlib import resources

from fastapi import FastAPI
from starlette.responses import Response

# Inline scripts and styles only, and no requests but to this service.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


def page() -> str:
    """The page with the style sheet of the report in it."""
    files = resources.files("kalstream")
    style = files.joinpath("report", "style.css").read_text(encoding="utf-8")
    content = files.joinpath("serve", "page.html").read_text(encoding="utf-8")
    return content.replace("/* style.css of the report */", style)


def add_page(api: FastAPI) -> None:
    """Serve the page."""
    content = page()

    @api.get("/", include_in_schema=False)
    async def root() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)
