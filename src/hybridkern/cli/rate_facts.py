"""What `hybridkern doctor` says about this machine's rates: those that plans are made with."""

from __future__ import annotations

from collections.abc import Iterator

from hybridkern.errors import HybridKernError


def rate_facts(measure: bool) -> Iterator[tuple[str, str]]:
    """(what, fact), one a line. measure: calibrate now, and keep that."""
    from hybridkern.kernels.cuda import driver
    from hybridkern.runtime.calibration import calibrate, known_rates, rates_file
    from hybridkern.runtime.threads import default_threads

    try:
        numbers = [gpu.number for gpu in driver.gpus()]
    except HybridKernError:
        numbers = []
    threads = default_threads()
    if measure:
        try:
            rates = calibrate(numbers, threads)
        except HybridKernError as error:
            if not numbers:
                raise
            yield "rates of the GPU", f"cannot be measured: {error}"
            numbers, rates = [], calibrate([], threads)
    else:
        rates = known_rates(numbers, threads)
    kept = f"kept in {rates_file()}" if "measured" in rates.origin else "`hybridkern doctor --rates` measures them"
    yield "rates", f"{rates.origin}; {kept}"
    for name in ("cpu", *(f"cuda{i}" for i in numbers)):
        r = rates.of(name)
        fast = f" ({r.fast['Q4_K'] / 1e9:.0f} GB/s from its cache)" if "Q4_K" in r.fast else ""
        macs = r.macs_of("Q4_K")
        many = f"{macs / 1e12:.1f} TMAC/s" if macs > 2e12 else f"{macs / 1e9:.0f} GMAC/s"
        yield (
            f"rates of {name}",
            f"Q4_K: weights at {r.read_of('Q4_K', 1e18) / 1e9:.0f} GB/s{fast}, many columns {many}; a product "
            f"{1e6 * r.op:.1f} us besides, KV cache {r.cache / 1e9:.0f} GB/s",
        )
        if name != "cpu":
            link = rates.link(name)
            yield (
                f"bus of {name}",
                f"{link.up / 1e9:.1f} GB/s there, {link.down / 1e9:.1f} GB/s back, a token's activations "
                f"{1e6 * link.latency:.1f} us",
            )
