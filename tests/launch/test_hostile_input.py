"""Whatever is thrown at the reader: a value or a named error, soon, and without a trace outside."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.launch import LaunchError, read_launch, write_back

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.nnodes=1\n"
PIECES = [
    "python3 -m verl.trainer.main_ppo", "data.train_batch_size=8", "$(date)", "`id`", "${X:-y}", "${X", "$((1+2))", "$((", "'", '"', "\\\n", "\n",
    ";", "&&", "||", "|", "if", "then", "fi", "for i in 1 2", "do", "done", "case x in", "esac", "a)", ";;", "{", "}", "(", ")", "[[", "]]", "==",
    "A=(", "<<EOF", "EOF", "> x", "2>&1", "&", "#", "*", "{a,b}", "~", "function f", "f()", "eval", "source x", "set -eu", "export A=1", "é", "\t",
    "${!A[@]}", "${A[@]:1}", "${A//x/y}", "while true", "[ -f x ]", "local", "read x", "shift", "$@", '"$@"', "\r", "=~", "nohup", "bash -c",
]  # fmt: skip


def _read(text: str, tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(LaunchError):
        assert read_launch(script, env={"HOME": "/h"}, cwd=str(tmp_path)).to_json()["entrypoint"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join))
def test_pieces_of_bash_in_any_order_end_in_a_value_or_a_named_error(tmp_path: Path, text: str) -> None:
    _read(text, tmp_path)
    _read(LAUNCH + text, tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda data: data.decode("latin-1"))))
def test_any_text_ends_in_a_value_or_a_named_error(tmp_path: Path, text: str) -> None:
    _read(text, tmp_path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        "$(" * 5000,
        "$((" * 3000,
        "((" * 3000 + "))" * 3000,
        "{" * 20000,
        "{a,b}" * 50 + "\n" + LAUNCH,
        "echo " + "{a,b}" * 20 + "\n" + LAUNCH,
        "echo {1..999999999}\n" + LAUNCH,
        '"${a:-' * 3000,
        "if true; then " * 3000,
        "while true; do :; done\n" + LAUNCH,
        "f() { f; f; }; f\n" + LAUNCH,
        "a=x; while :; do a=$a$a; done\n" + LAUNCH,
        "a=b; b=a; echo $((a))\n" + LAUNCH,
        "x=" + "a" * 3000 + "; echo ${x//*a*a*a*a*a*b/y}\n" + LAUNCH,
        "[[ " + "a" * 400 + " =~ (a+)+$b ]]\n" + LAUNCH,
        "[[ " + "( " * 3000 + "\n",
        "echo $((" + "-" * 5000 + "1))\n" + LAUNCH,
        "echo $((" + "1**" * 3000 + "1))\n" + LAUNCH,
        "for i in {1..5000}; do for j in {1..5000}; do :; done; done\n" + LAUNCH,
        "eval 'eval \"eval x\"'; e() { eval \"$1 $1\"; }; e e\n" + LAUNCH,
        LAUNCH.strip() + " data.x=" + "[" * 10_000 + "\n",
        LAUNCH.strip() + " data.x=[" + "1," * 50_000 + "1]\n",
        LAUNCH.strip() + "".join(f" data.k{i}=[a,b]" for i in range(3000)) + "\n",
        LAUNCH.strip() + "".join(f" data.k{i}=[a,{{x:{i}}}]" for i in range(700)) + "\n",
        "cat <<A <<B <<C\n" * 2000,
        "`" * 5001,
        "\\\n" * 50_000,
        "a\n" * 100_000,
        "'" + "x" * 200_000,
        "echo ${x:" + "(" * 3000 + "}\n",
        "case x in " + "a|" * 50_000,
        "if $(x); then a=1; fi\n" * 400 + LAUNCH,
        "".join(f"if unknown{i}; then python3 -m verl.trainer.main_ppo data.a={i} data.b=1; fi\n" for i in range(300)),
        "! " * 50_000,
        "a=1 " * 50_000,
        "printf %999999999d 1; x=$(printf %999999999d 1)\n" + LAUNCH,
        "x=$(seq 1 999999)\n" + LAUNCH,
        "echo " + "x" * 250_000 + "\n" + LAUNCH,
    ],
    ids=range(38),
)  # fmt: skip
def test_input_made_to_hang_the_reader_does_not(tmp_path: Path, text: str) -> None:
    _read(text, tmp_path)


@pytest.mark.timeout(10)
def test_large_and_binary_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "big.sh").write_bytes(b"echo x\n" * 1_500_000)
    (tmp_path / "binary.sh").write_bytes(bytes(range(256)) * 500)
    for name, code in (
        ("big.sh", "TOO_LARGE"),
        ("binary.sh", "NOT_TEXT"),
        ("none.sh", "FILE_NOT_FOUND"),
        (".", "NOT_A_FILE"),
    ):
        with pytest.raises(LaunchError) as caught:
            read_launch(tmp_path / name, env={})
        assert caught.value.code == code


CANARY = """
rm -rf {d}/precious
echo x > {d}/trace1
: > {d}/trace2
a=$(touch {d}/trace3)
b=`touch {d}/trace4`
eval "touch {d}/trace5"
eval 'echo x > {d}/trace6'
cat > {d}/trace7 <<EOF
$(touch {d}/trace8)
EOF
curl -o {d}/trace9 http://localhost:1/x
diff <(touch {d}/trace10) /dev/null
mkdir -p {d}/trace11 && cd {d}/trace11
bash -c 'touch {d}/trace12'
source {d}/inner.sh
trap 'touch {d}/trace13' EXIT
exec 3> {d}/trace14
mapfile -t x < <(touch {d}/trace15)
[[ -f {d}/precious/file ]] && echo "$(rm {d}/precious/file)"
c=$((x[$(touch {d}/trace16)]))
printf -v y '%s' "$(touch {d}/trace17)"
python3 -c 'open("{d}/trace18", "w")'
python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.x=$(touch {d}/trace19) > {d}/trace20 2>&1
"""


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (tmp_path / "inner.sh").write_text(f"touch {tmp_path}/trace21\nexport INNER=1\n")
    script = tmp_path / "s.sh"
    script.write_text(CANARY.format(d=tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    environment, folder = dict(os.environ), Path.cwd()
    launch = read_launch(script, env={"HOME": "/h"}, cwd=str(tmp_path))
    write_back(launch, {"data.train_batch_size": 16})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert (dict(os.environ), Path.cwd()) == (environment, folder)
    assert launch.env["INNER"] == "1"
    assert [item.key for item in launch.unresolved if item.line] == ["trainer.x"]
    assert any("rm -rf" in text for _, text in launch.not_executed)
