"""The report of a day: which figures a second run keeps. What a GPU says and measures is made up."""

import json
import sys

import torch

from cuda_ext import bench, library, report


def test_times_of_a_kernel_replace_all_its_own_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(library, "unfit", lambda device: None)
    monkeypatch.setattr(bench, "environment", lambda: {"gpu": "NVIDIA H200"})

    def times(run, *kernels):
        results = [{"kernel": f"{name}{way}", "run": run} for name in kernels for way in ("", " backward")]
        monkeypatch.setattr(bench, "measuring", lambda names: iter([{"results": results}]))
        monkeypatch.setattr(sys, "argv", ["report", "--part", "times", *kernels, "--output", str(tmp_path)])
        assert report.main() == 0
        (file,) = tmp_path.iterdir()
        return [(row["kernel"], row["run"]) for row in json.loads(file.read_text(encoding="utf-8"))["results"]]

    times(1, "swish", "max_pool2d")
    assert times(2, "max_pool2d") == [
        ("swish", 1), ("swish backward", 1), ("max_pool2d", 2), ("max_pool2d backward", 2),
    ]  # fmt: skip
