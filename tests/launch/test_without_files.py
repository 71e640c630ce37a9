"""A text from somebody who may not see this host's files: nothing of them reaches the result."""

from __future__ import annotations

import pytest

from autotune.launch.launch import Context
from autotune.launch.read import Source, read_text


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "settings.sh"
    path.write_text("MODEL=/models/of-somebody-else\npython3 -m verl.trainer.main_ppo data.train_batch_size=7\n")
    (tmp_path / "link").symlink_to(path)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "source {0}/settings.sh",
        ". {0}/settings.sh",
        "MODEL=$(cat {0}/settings.sh)",
        "MODEL=$(<{0}/settings.sh)",
        "bash {0}/settings.sh",
        "MODEL=$(realpath {0}/link)",
        "MODEL=$(readlink -f {0}/link)",
        "[ -f {0}/settings.sh ] && MODEL=somebody-else-has-it",
        "if [[ -s {0}/settings.sh ]]; then MODEL=somebody-else-has-it; fi",
    ],
)
def test_no_file_of_this_host_shows(secret, line):
    command = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.project_name=x${MODEL:-}\n"
    text = line.format(secret) + "\n" + command
    context = Context({}, "/", None, (), {}, (), None, reads_files=False)
    launch = read_text(Source(text, None, "script", {}), context)
    assert launch.value("data.train_batch_size") == 64
    shown = str(launch.to_json())
    assert "of-somebody-else" not in shown
    assert "somebody-else-has-it" not in str(launch.value("trainer.project_name"))
    assert "link" not in line or "settings.sh" not in shown


def test_what_the_text_itself_writes_is_known(tmp_path):
    text = f"cat > {tmp_path}/own.sh <<'END'\nBATCH=32\nEND\nsource {tmp_path}/own.sh\npython3 -m verl.trainer.main_ppo data.train_batch_size=$BATCH\n"
    context = Context({}, "/", None, (), {}, (), None, reads_files=False)
    assert read_text(Source(text, None, "script", {}), context).value("data.train_batch_size") == 32
