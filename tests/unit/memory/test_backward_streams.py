"""Which stream a node of the autograd graph runs on. Torch runs in a child of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from fsdp_doctor.memory.replay import START

ASK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
streams = start.load("backward_streams")
import torch
flat, x = torch.ones(6, requires_grad=True), torch.ones(2, requires_grad=True)
views = [part.view(-1) for part in flat.split([2, 4])]
for view in views:
    streams.note(view, "unshard")
streams.note(views[0], "another")
found = {}
def ran(name):
    return lambda *_: found.update({name: streams.running()})
product = views[0] * x
product.grad_fn.register_hook(ran("product"))
views[0].grad_fn.register_hook(ran("view"))
views[0].grad_fn.next_functions[0][0].register_hook(ran("split"))
leaf = flat.expand_as(flat).grad_fn.next_functions[0][0]
leaf.register_hook(ran("leaf"))
(product.sum() + views[1].sum()).backward()
print(json.dumps({**found, "outside": streams.running()}))
"""


@pytest.mark.timeout(60)
def test_views_and_their_leaf_run_where_the_views_were_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(START)], capture_output=True, text=True, timeout=50, check=True
    )
    found = json.loads(done.stdout)
    assert found == {
        "product": None,
        "view": "unshard",
        "split": "unshard",
        "leaf": "unshard",
        "outside": None,
    }
