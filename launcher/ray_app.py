"""The application for Ray's own commands, such as: serve run launcher.ray_app:app replicas=2 model-id=org/name."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from launcher.environment_variables import python_module_command
from launcher.ray_serve.options import check_ray_installed, make_server_settings, read_app_arguments

SERVE_ARGUMENTS = (*python_module_command("launcher.cli")[1:], "serve")  # of Python, whose path may be another there


def app(arguments: Mapping[str, Any]) -> Any:
    """Return the application. Arguments are options of `weft deploy ray`, and settings of `weft serve`, by name."""
    options, settings = read_app_arguments(arguments)
    check_ray_installed()
    return import_module("launcher.ray_serve.deployments").build_app(
        options, make_server_settings(settings, SERVE_ARGUMENTS))
