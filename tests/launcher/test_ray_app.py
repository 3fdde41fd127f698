from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import ray_app
from launcher.ray_serve.options import RayOptions, ServerSettings

SERVE_FILE = Path(__file__).parents[2] / "deploy/ray/serve.yaml"


@pytest.fixture
def build_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the application be its options and settings, without Ray."""
    class FakeModule:
        @staticmethod
        def build_app(options: RayOptions, server: ServerSettings) -> Any:
            return options, server

    monkeypatch.setattr(ray_app, "check_ray_installed", lambda: None)
    monkeypatch.setattr(ray_app, "import_module", {"launcher.ray_serve.deployments": FakeModule}.__getitem__)


@pytest.mark.usefixtures("build_app")
def test_application_of_the_example_has_valid_arguments() -> None:
    [application] = yaml.safe_load(SERVE_FILE.read_text())["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == (ray_app.__name__, ray_app.app.__name__)
    options, server = ray_app.app(application["args"])
    assert options == RayOptions(replicas=1, max_replicas=4, ingress_replicas=2)
    assert server.arguments == ("-P", "-m", "launcher.cli", "serve", "--model-id=org/name",
                                "--max-concurrent-requests=128", "--hostname=127.0.0.1", "--port=0", "--no-json-output")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.ray_serve.options.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'weft\[ray\]'"):
        ray_app.app({})
