"""Models in the Hub's cache: their names, sizes and revisions, and their removal."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime

from launcher.console_output import align_columns, format_bytes
from launcher.hub.cache import REPOSITORY_PREFIX
from launcher.hub.resolve import HUB_NAME_PATTERN, ModelNotCachedError, check_model_files


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model of the cache, with all its revisions."""

    name: str
    folder: Path
    num_bytes: int
    revisions: tuple[str, ...]  # branches and tags that were downloaded
    is_servable: bool  # whether a snapshot has all files that a server needs
    changed_at: float  # seconds since 1970


def iterate_cached_models(cache_folder: Path) -> Iterator[CachedModel]:
    for folder in sorted(cache_folder.glob(f"{REPOSITORY_PREFIX}*")):
        name = folder.name.removeprefix(REPOSITORY_PREFIX).replace("--", "/")
        if folder.is_symlink() or not folder.is_dir() or not HUB_NAME_PATTERN.fullmatch(name):
            continue
        files = [*folder.glob("blobs/*"), *folder.glob("snapshots/*/**/*")]
        blobs = [path.stat() for path in files if path.is_file() and not path.is_symlink()]
        revisions = sorted(path.relative_to(folder / "refs").as_posix() for path in folder.glob("refs/**/*")
                           if path.is_file())
        yield CachedModel(name, folder, sum(blob.st_size for blob in blobs), tuple(revisions),
                          any(map(is_servable_snapshot, folder.glob("snapshots/*"))),
                          max((blob.st_mtime for blob in blobs), default=folder.stat().st_mtime))


def is_servable_snapshot(folder: Path) -> bool:
    try:
        check_model_files(folder)
    except (ValueError, OSError):
        return False
    return True


def format_models_table(models: list[CachedModel], cache_folder: Path) -> str:
    if not models:
        return f"no models in {cache_folder}"
    rows = [("model", "size", "downloaded", "revisions", "")]
    rows += [(model.name, format_bytes(model.num_bytes), strftime("%Y-%m-%d", localtime(model.changed_at)),
              ", ".join(model.revisions) or "-", "" if model.is_servable else "not a model that weft can serve")
             for model in models]
    return align_columns(rows, left_columns=range(len(rows[0])))


def remove_cached_model(name: str, cache_folder: Path) -> CachedModel:
    """Remove a model with all its revisions, and return what it was. Raises ModelNotCachedError if it is not there."""
    model = next((model for model in iterate_cached_models(cache_folder) if model.name == name), None)
    if model is None:
        raise ModelNotCachedError(f"there is no model {name} in {cache_folder}; `weft models` lists those that are")
    shutil.rmtree(model.folder)
    shutil.rmtree(cache_folder / ".locks" / model.folder.name, ignore_errors=True)
    return model
