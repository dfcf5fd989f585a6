"""Every example script runs at a small size and does what it says."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "flights": ["--rows=5000", "--draws=50", "--tune=100", "--chains=2"],
    "flights_bambi": ["--rows=5000", "--draws=50", "--tune=100", "--chains=2"],
}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.fixture
def matplotlib_without_a_screen():
    matplotlib = pytest.importorskip("matplotlib")
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    yield
    matplotlib.pyplot.close("all")
    matplotlib.use(before)


@pytest.mark.usefixtures("matplotlib_without_a_screen")
def test_flights(tmp_path, capsys):
    idata = load("flights").main([*SMALL["flights"], f"--output={tmp_path}"])

    posterior = idata["posterior"]
    assert {"beta", "hour_effect", "carrier_intercept", "carrier_sd"} <= set(posterior.data_vars)
    assert posterior.sizes["chain"] == 2
    assert posterior.sizes["draw"] == 50
    assert all(np.isfinite(values).all() for values in posterior.data_vars.values())
    assert (tmp_path / "flights.png").stat().st_size > 10_000

    printed = capsys.readouterr().out
    assert "carrier_sd" in printed
    assert "Rows used per draw" in printed


def test_flights_bambi(capsys):
    pytest.importorskip("bambi")
    idata = load("flights_bambi").main(SMALL["flights_bambi"])

    posterior = idata["posterior"]
    assert set(posterior.data_vars) == {
        "Intercept",
        "scale(hour)",
        "scale(rain)",
        "1|carrier_sigma",
        "1|carrier",
    }
    assert all(np.isfinite(values).all() for values in posterior.data_vars.values())
    assert "scale(rain)" in capsys.readouterr().out


def test_flights_data_are_complete():
    data = load("flights").load_data()
    assert len(data["arrival_delay"]) == 327_346
    assert len(data["carrier_names"]) == 16
    assert np.mean(data["arrival_delay"] > 15) == pytest.approx(0.237, abs=0.001)
