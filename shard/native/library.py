"""Compiled kernels for CPUs, loaded with ctypes.

The library uses no header of Python or torch, and runs its loops on the threads of torch's OpenMP, whose functions it
is given. Where there is no compiler, or the processor has too few instructions, the callers use torch instead.
"""

import ctypes
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock

import torch

from shard.native.compiler import (
    CompilationFailed,
    compile_library,
    is_supported_platform,
    library_file_name,
)
from shard.native.kernel_recording import ACTIVE_RECORDING, KernelPhase, PhaseArray, ResultMemory

PACKAGE_FOLDER = Path(__file__).parent  # where an installation leaves the library
ISA_VARIABLE = "WEFT_CPU_ISA"  # that of the setting --cpu-isa
# By their numbers in phases.h; the first has no kernels.
INSTRUCTION_SETS = ("none", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")
ACTIVATION_DTYPES = (torch.float32, torch.bfloat16)  # in the order of rows.h
AMX_TILE_ROWS = 16  # as in amx_tiles.h
MAX_PHASES = 2  # of one kernel
MIN_RESULTS_FOR_THREADS = 16384  # of a norm, a rotary embedding, an activation or sampling
# From this size on malloc gives memory back to the system, which fills it with zeros when it hands it out again: that
# was a fifth of a step of 1,024 tokens.
MIN_BYTES_TO_KEEP = 2**25

kept_memory = ResultMemory()  # of large results, for later ones
kept_memory_lock = Lock()
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The loaded kernels, the instruction set that they are to use, and the function that runs them on threads."""

    functions: ctypes.CDLL
    instruction_set: str
    openmp_parallel: ctypes.c_void_p  # GOMP_parallel

    @property
    def lanes(self) -> int:
        """The number of float32 values in a vector."""
        return 8 if self.instruction_set in {"avx2", "avx2_vnni"} else 16

    @property
    def has_amx(self) -> bool:
        return self.instruction_set == "amx"

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether there are instructions for products of bfloat16 rows."""
        return self.instruction_set in {"avx512_bf16", "amx"}

    def multiply(self, arguments: ctypes.Structure, *, is_float16: bool) -> None:
        """Compute a `Product` (products.c)."""
        self._execute(self.functions.weft_prepare_product, arguments, self._set_number, is_float16,
                      torch.get_num_threads())

    def pack(self, arguments: ctypes.Structure) -> None:
        """Compute a `Packing` (packing.c)."""
        self._execute(self.functions.weft_prepare_packing, arguments, torch.get_num_threads())

    def pack_int4(self, arguments: ctypes.Structure) -> None:
        """Compute an `Int4Packing` (packing.c)."""
        self._execute(self.functions.weft_prepare_int4_packing, arguments, torch.get_num_threads())

    def quantize(self, arguments: ctypes.Structure) -> None:
        """Compute a `Quantizing` (quantizing.c)."""
        self._execute(self.functions.weft_prepare_quantizing, arguments, torch.get_num_threads())

    def multiply_bfloat16(self, arguments: ctypes.Structure) -> None:
        """Compute a `Bf16Product` (bf16_product.h)."""
        prepare = (self.functions.weft_prepare_amx_bf16_product if self.has_amx
                   else self.functions.weft_prepare_bf16_product)
        self._execute(prepare, arguments, torch.get_num_threads())

    def multiply_int8(self, arguments: ctypes.Structure) -> None:
        """Compute an `Int8Product` (int8_product.h)."""
        self._execute(self.functions.weft_prepare_int8_product, arguments, self._set_number, torch.get_num_threads())

    def multiply_int4(self, arguments: ctypes.Structure, *, uses_amx: bool) -> None:
        """Compute an `Int4Product` (int4_product.h)."""
        if uses_amx:
            self._execute(self.functions.weft_prepare_amx_int4_product, arguments, torch.get_num_threads())
        else:
            self._execute(self.functions.weft_prepare_int4_product, arguments, self._set_number,
                          torch.get_num_threads())

    def apply_gated_activation(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Gating` (activations.c)."""
        self._execute(self.functions.weft_prepare_gating, arguments, self._set_number, num_results=num_results)

    def norm(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Norm` (norms.c)."""
        self._execute(self.functions.weft_prepare_norm, arguments, num_results=num_results)

    def rotate(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Rotation` (rotary.c)."""
        self._execute(self.functions.weft_prepare_rotation, arguments, num_results=num_results)

    def round_to_bfloat16(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Rounding` (rounding.c)."""
        self._execute(self.functions.weft_prepare_rounding, arguments, num_results=num_results)

    def attend(self, arguments: ctypes.Structure) -> None:
        """Compute an `Attention` (attention.c)."""
        self._execute(self.functions.weft_prepare_attention, arguments, self._set_number)

    def compute_softmax_normalizers(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Normalizing` (normalizing.c)."""
        self._execute(self.functions.weft_prepare_normalizing, arguments, self._set_number, num_results=num_results)

    def select_candidates(self, arguments: ctypes.Structure, *, num_results: int) -> None:
        """Compute a `Selection` (candidates.c)."""
        self._execute(self.functions.weft_prepare_selection, arguments, num_results=num_results)

    def add_lora_update(self, arguments: ctypes.Structure) -> None:
        """Compute a `LoraUpdate` (lora.c)."""
        self._execute(self.functions.weft_prepare_lora_update, arguments)

    def run_phases(self, phases: PhaseArray, count: int, num_threads: int | None = None) -> None:
        """Run phases on torch's threads."""
        self.functions.weft_run_phases(phases, ctypes.c_int64(count), self.openmp_parallel,
                                       num_threads or torch.get_num_threads())

    @property
    def _set_number(self) -> int:
        return INSTRUCTION_SETS.index(self.instruction_set)

    def _execute(self, prepare: Callable[..., int], arguments: ctypes.Structure, *options: int,
                 num_results: int = MIN_RESULTS_FOR_THREADS) -> None:
        """Run a kernel on torch's threads, or on this one alone if it has few results; or record it."""
        phases = (KernelPhase * MAX_PHASES)()
        count = prepare(ctypes.byref(arguments), *options, phases)
        recording = ACTIVE_RECORDING.get()
        if recording is None:
            self.run_phases(phases, count, None if num_results >= MIN_RESULTS_FOR_THREADS else 1)
        else:
            recording.add(phases, count, arguments)


def load_library() -> NativeLibrary | None:
    """Return the kernels, compiled if that has not happened yet; None if they cannot be used."""
    library = load_library_or_reason()
    return None if isinstance(library, str) else library


def describe_loaded_library() -> str:
    """Return the sources and instructions of the kernels in use; empty if nothing asked for any, or there are none."""
    library = load_library() if load_library_or_reason.cache_info().currsize else None
    return "" if library is None else f"{library_file_name()} {library.instruction_set}"


def log_use_of_kernels() -> None:
    """Log whether the model that has been loaded uses kernels, or that it would if there were some."""
    library = load_library_or_reason() if load_library_or_reason.cache_info().currsize else None
    if isinstance(library, NativeLibrary):
        logger.info("compiled kernels for %s", library.instruction_set.replace("_", " with "))
    elif library is not None:
        level = logging.INFO if os.environ.get(ISA_VARIABLE) == "none" else logging.WARNING
        logger.log(level, "no compiled kernels, so products and attention are slower: %s", library)


@cache
def load_library_or_reason() -> NativeLibrary | str:
    """Return the kernels, or why they cannot be used here."""
    if not is_supported_platform():
        return f"they are for Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    if (openmp_parallel := find_openmp_parallel()) is None:
        return "this torch has no OpenMP of GNU's kind"
    try:
        functions = load_functions(os.environ)
    except (OSError, CompilationFailed) as error:
        return str(error)
    wanted = os.environ.get(ISA_VARIABLE, "").removeprefix("auto")
    instruction_set = choose_instruction_set(list_instruction_sets(functions), wanted)
    if instruction_set == "none":
        return "--cpu-isa is none" if wanted == "none" else "this processor has no AVX2"
    return NativeLibrary(functions, instruction_set, openmp_parallel)


def list_instruction_sets(functions: ctypes.CDLL) -> tuple[str, ...]:
    """Return the instruction sets of this processor, the best one last; "none" is always among them."""
    bits = functions.weft_instruction_sets()
    return tuple(name for number, name in enumerate(INSTRUCTION_SETS) if number == 0 or bits >> number & 1)


def choose_instruction_set(available: Sequence[str], wanted: str) -> str:
    """Return the wanted instruction set, or the best one below it if this processor lacks it; by default the best."""
    if wanted and wanted not in INSTRUCTION_SETS:
        raise ValueError(f"{ISA_VARIABLE} must be one of auto, {', '.join(INSTRUCTION_SETS)}, got {wanted!r}")
    allowed = INSTRUCTION_SETS[:INSTRUCTION_SETS.index(wanted) + 1] if wanted else INSTRUCTION_SETS
    return max(set(allowed) & set(available), key=INSTRUCTION_SETS.index)


def find_openmp_parallel() -> ctypes.c_void_p | None:
    """Return the address of GOMP_parallel in the library of OpenMP that torch has loaded."""
    paths = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    library = ctypes.CDLL(str(paths[0]) if paths else None)  # None: all that this process has loaded for everyone
    try:
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p)
    except AttributeError:
        return None


def load_functions(environment: Mapping[str, str]) -> ctypes.CDLL:
    """Load the library for the present sources: that of the installation, or, if it does not load here, one compiled
    into the user's cache."""
    name = library_file_name()
    installed_path = PACKAGE_FOLDER / name
    if installed_path.is_file():
        with suppress(OSError):  # made for another system
            return ctypes.CDLL(str(installed_path))
    cache_folder = get_cache_folder(environment)
    cached_path = cache_folder / name
    return ctypes.CDLL(str(cached_path if cached_path.is_file() else compile_library(cache_folder)))


def get_cache_folder(environment: Mapping[str, str]) -> Path:
    try:
        base = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError as error:
        raise CompilationFailed("this user has no home folder; set XDG_CACHE_HOME to a folder") from error
    return base / "weft" / "native"


def allocate_result(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor for the results of a kernel, or for what it needs beside them."""
    recording = ACTIVE_RECORDING.get()
    if recording is not None:
        return recording.memory.allocate(shape, dtype)
    if prod(shape) * dtype.itemsize < MIN_BYTES_TO_KEEP:
        return torch.empty(shape, dtype=dtype)
    with kept_memory_lock:
        return kept_memory.allocate(shape, dtype)
