"""The engine over a driver without a GPU (fake_driver/libcuda.c), whose model's tokens say whether pages, copies and
queued steps are right. What kernels compute is not tested here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_cuda_endings import ENDINGS, end
from tiny import write_tiny

from hybridkern.kernels.cuda.launches import home_of

pytestmark = pytest.mark.on_host
HERE = Path(__file__).with_name("fake_driver")
SOURCES = Path(__file__).parents[2] / "csrc"


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the fake driver is found."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("fake")
    words = [compiler, "-O1", "-shared", "-fPIC", f"-I{SOURCES}", HERE / "libcuda.c", "-o", folder / "libcuda.so.1"]
    subprocess.run([*words, "-lpthread", "-lm"], check=True)
    for source in (SOURCES / "cuda").glob("*.cu"):
        (folder / f"{source.stem}.cubin").write_bytes(b"not looked at")
    assert home_of("hk_argmax") == "argmax"
    paths = [str(HERE), str(HERE.parents[1] / "model"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "XDG_CACHE_HOME": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
        "HYBRIDKERN_CUDA_IMAGES": str(folder),
    }
    hidden = ("CUDA_VISIBLE_DEVICES",)
    return {k: v for k, v in os.environ.items() if k not in hidden} | own


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", context=1 << 20).path)


def run(*words: Any, env: dict[str, str], status: int = 0) -> str:
    """Standard output and error of a Python program."""
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


PROGRAMS = ("tokens", "turns", "loads", "view", "plans", "observed", "divided", "divided_interrupt")


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(fake: dict[str, str], model: Path, name: str) -> None:
    assert "done" in run(HERE / "programs.py", name, model, env=fake)


@pytest.mark.parametrize("name", ["tokens", "turns", "divided", "divided_interrupt", "divided_threads"])
def test_program_with_streams_that_take_their_time(fake: dict[str, str], model: Path, name: str) -> None:
    """What is queued is done by threads, and small steps of divided models cross through mapped memory."""
    assert "done" in run(HERE / "programs.py", name, model, env=fake | {"FAKE_CUDA_MAPPED": "1"})


def test_tuning(fake: dict[str, str], model: Path, tmp_path: Path) -> None:
    """A plan that was measured is kept for this GPU, driver and memory."""
    env = fake | {"XDG_CACHE_HOME": str(tmp_path)}
    tuned = run("-m", "hybridkern", "tune", "-m", model, "-c", "512", "--budget-seconds", "4", env=env)
    assert "the plan's" in tuned and "kept in " in tuned
    words = ("-m", "hybridkern", "generate", "-m", model, "--dry-run", "-c")
    assert " and its placement, on " in run(*words, "512", env=env)
    for changed, said in (({"FAKE_CUDA_VERSION": "12040"}, "the driver was 13.0, and is 12.4"),
                          ({"FAKE_CUDA_MIB": "900"}, "the memory that may be used is another")):  # fmt: skip
        assert f"what was tuned is not used: {said}" in run(*words, "512", env=env | changed)
    assert "what was tuned is not used: the context was 512, and is 256" in run(*words, "256", env=env)


def test_a_device_that_hangs_is_an_error(fake: dict[str, str], model: Path) -> None:
    run(HERE / "programs.py", "divided_mute", model, env=fake | {"FAKE_CUDA_MAPPED": "1", "FAKE_CUDA_MUTE": "1"})


@pytest.mark.parametrize("status", [None, 801, 2], ids=["registered", "refused", "too much to lock"])
def test_weights_from_main_memory(fake: dict[str, str], model: Path, status: int | None) -> None:
    env = {} if status is None else {"FAKE_CUDA_REGISTER": str(status)}
    assert "done" in run(HERE / "programs.py", "streamed", model, env=fake | env)


def test_forgotten_models_make_room(fake: dict[str, str], model: Path) -> None:
    run(HERE / "programs.py", "forgotten", model, env=fake | {"FAKE_CUDA_MIB": "256"})


def test_out_of_memory_is_an_error_and_the_rest_lives_on(fake: dict[str, str], model: Path) -> None:
    said = run(HERE / "programs.py", "memory", model, env=fake | {"FAKE_CUDA_MIB": "128"})
    assert "(KV cache 256 MiB," in said and "can give" in said


def test_memory_that_is_taken_meanwhile(fake: dict[str, str], model: Path, tmp_path: Path) -> None:
    env = fake | {"FAKE_CUDA_MIB": "128", "XDG_CACHE_HOME": str(tmp_path)}
    run(HERE / "programs.py", "stolen", model, env=env)


def test_interrupts(fake: dict[str, str], model: Path) -> None:
    run(HERE / "programs.py", "interrupt", model, env=fake)


def test_a_broken_context(fake: dict[str, str], model: Path) -> None:
    run(HERE / "programs.py", "broken", model, env=fake | {"FAKE_CUDA_BREAK": "9"})
    for mapped in "01":
        env = fake | {"FAKE_CUDA_BREAK": "29", "FAKE_CUDA_MAPPED": mapped}
        run(HERE / "programs.py", "divided_broken", model, env=env)


@pytest.mark.parametrize("how", ENDINGS)
def test_the_process_ends_cleanly(fake: dict[str, str], model: Path, how: str) -> None:
    end(how, model, env=fake)


CLI = ("-m", "hybridkern", "generate", "-n", "3", "--temp", "0", "-p", "hello", "-m")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, "no GPU can be used: cuInit failed"),
        ({"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ''"),
        ({"FAKE_CUDA_LOAD": "209"}, "the kernels of this build do not run on Fake 0 (sm_90, driver for CUDA 13.0)"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "no NVIDIA driver"),
        ({"PYTHONPATH": ""}, "pycuda is not installed"),
        ({"HYBRIDKERN_CUDA_IMAGES": "/nowhere", "HYBRIDKERN_NVRTC": "/nowhere"}, "HYBRIDKERN_CUDA=ON"),
    ],
)
def test_no_usable_gpu_is_an_error_when_it_was_asked_for(
    fake: dict[str, str], model: Path, environment: dict[str, str], said: str
) -> None:
    if "pycuda" in said and "site-packages" in os.environ.get("PYTHONPATH", ""):
        pytest.skip("pycuda may be there")
    env = fake | environment
    text = run(*CLI, model, "-ngl", "all", env=env, status=1)
    assert "error: " in text and said in text and "Traceback" not in text
    assert "everything runs on the CPU: " in run(*CLI, model, "-ngl", "auto", env=env)
    there = {"FAKE_CUDA_DEVICES", "LD_LIBRARY_PATH"}.isdisjoint(environment)  # a GPU, which cannot be used
    assert ("everything runs on the CPU: " in run(*CLI, model, env=env)) == there


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-ngl", "all", "--device", "none"), "give one of them"),
        (("--device", "CUDA0", "-mg", "1"), "give one of them"),
        (("-ngl", "all", "-ot", "ffn=CUDA1"), "there is no GPU cuda1: this process sees 1 (cuda0)"),
        (("--gpu-memory", "100,100"), "gpu_memory names 2 GPUs; 1 can be used"),
        (("-ngl", "all", "-ctk", "f32"), "a cache on the GPU is f16, q8_0, q4_0"),
    ],
)
def test_flags_that_do_not_go_together(fake: dict[str, str], model: Path, flags: tuple[str, ...], said: str) -> None:
    assert said in run(*CLI, model, *flags, env=fake, status=2)


@pytest.mark.parametrize("flags", [(), ("-ngl", "auto"), ("-ngl", "all"), ("-ngl", "99"), ("-mg", "0")])
def test_flags_that_mean_the_gpu(fake: dict[str, str], model: Path, flags: tuple[str, ...]) -> None:
    assert "CUDA kernel set on GPU 0: Fake 0" in run(*CLI, model, "--verbose", *flags, env=fake)


@pytest.mark.parametrize("flags", [("-ngl", "0", "--no-op-offload"), ("--device", "none")])
def test_flags_that_mean_the_cpu(fake: dict[str, str], model: Path, flags: tuple[str, ...]) -> None:
    said = run(*CLI, model, "--verbose", *flags, env=fake)
    assert "CPU kernel set" in said and "Fake 0" not in said


def test_doctor_says_what_there_is(fake: dict[str, str]) -> None:
    said = run("-m", "hybridkern", "doctor", env=fake | {"COLUMNS": "200"})
    assert "for CUDA 13.0" in said and "Fake 0, compute capability 9.0, 1.0 GiB" in said
    assert "the GPU as far as they fit, and the CPU" in said
    none = run("-m", "hybridkern", "doctor", env=fake | {"COLUMNS": "200", "FAKE_CUDA_LOAD": "209"})
    assert "the CPU: the kernels of this build do not run on Fake 0" in none
