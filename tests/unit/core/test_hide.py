"""Messages repeat no password."""

from __future__ import annotations

import time

import pytest
from gpu_runner_inside.launcher.environment import _SECRET_NAME, recorded

from runner.cli import run
from runner.core.errors import Exit
from runner.core.hide import hidden, hidden_command, is_secret, redacted


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("tcp://user:planted@host:2375 is silent", "tcp://***@host:2375 is silent"),
        ("https://planted@host/x", "https://***@host/x"),
        ("pulling 'user:planted@host/image:1'", "pulling '***@host/image:1'"),
        ("docker://user:planted@host/image", "docker://***@host/image"),
        ("https://user:pl@nt@planted@host/x@y", "https://***@host/x@y"),
        ("user:planted@planted@host/image:1", "***@host/image:1"),
        ("docker://pytorch@sha256:00ff", "docker://pytorch@sha256:00ff"),
        ("docker://user:planted@pytorch@sha256:00ff", "docker://***@pytorch@sha256:00ff"),
        ("nvcr.io/nvidia/pytorch:25.02-py3@sha256:00ff", "nvcr.io/nvidia/pytorch:25.02-py3@sha256:00ff"),
        ("ssh user@host, 12:30 @ noon", "ssh user@host, 12:30 @ noon"),
    ],
)
def test_user_and_password_are_hidden(said: str, shown: str) -> None:
    assert hidden(said) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["build", "pytorch", "--engine", "tcp://user:planted@127.0.0.1:9"],
        ["build", "pytorch", "--engine", "user:planted@nowhere"],
        ["convert", "user:planted@registry.invalid/image:1"],
        ["submit", "--gpus", "1", "--site", "technion", "--image", "https://user:planted@registry.invalid/image"],
        ["submit", "--gpus", "1", "--site", "https://user:planted@host/site.yaml"],
        ["submit", "--gpus", "1", "--site", "technion", "--recipe", "git+https://user:planted@host/recipe"],
        ["https://user:planted@host/"],
    ],
)
def test_no_error_repeats_a_password(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(words) != Exit.GOOD
    said = capfd.readouterr()
    assert said.err
    assert "planted" not in said.out + said.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["sh", "-c", "HF_TOKEN=planted x"], ["sh", "-c", "HF_TOKEN=*** x"]),
        (["sh", "-c", "export WANDB_API_KEY='planted it'; x"], ["sh", "-c", "export WANDB_API_KEY=***; x"]),
        (["sh", "-c", "x --password planted -y"], ["sh", "-c", "x --password *** -y"]),
        (["login", "--token", "planted", "--x"], ["login", "--token", "***", "--x"]),
        (["curl", "-H", "Authorization: Basic planted"], ["curl", "-H", "Authorization: Basic ***"]),
        (["curl", "-H", "PRIVATE-TOKEN: planted", "u"], ["curl", "-H", "PRIVATE-TOKEN: ***", "u"]),
        (["--env", "DB_PASSWORD=planted & planted;planted"], ["--env", "DB_PASSWORD=***"]),
        (["--env=DB_PASSWORD=planted 'planted'"], ["--env=DB_PASSWORD=***"]),
        (["x", "--api-key=a&planted\nplanted"], ["x", "--api-key=***"]),
        (["x", "--wandb.api_key", "planted", "-y"], ["x", "--wandb.api_key", "***", "-y"]),
        (["x", '{"password": "planted it", "n": 1}'], ["x", '{"password": ***, "n": 1}']),
        (
            ["x", "hydra.secret.value=planted", "++db.password=planted"],
            ["x", "hydra.secret.value=***", "++db.password=***"],
        ),
        (["sh", "-c", "SSHPASS=planted MYSQL_PWD=planted x"], ["sh", "-c", "SSHPASS=*** MYSQL_PWD=*** x"]),
        (["x", "--token", "1234567890", "--pass", "1"], ["x", "--token", "***", "--pass", "***"]),
        (
            ["x", "--max-tokens", "2048", "--tokens=4k", '{"num_tokens": 5, "token": "planted"}', "--pad-token", "<p>"],
            ["x", "--max-tokens", "2048", "--tokens=4k", '{"num_tokens": 5, "token": ***}', "--pad-token", "<p>"],
        ),
        (["x", "--author", "me", "--passes=2", "PWD=/home/u"], ["x", "--author", "me", "--passes=2", "PWD=/home/u"]),
        (["login", f"hf_{'planted0' * 4}"], ["login", "***"]),
        (["pip", "install", "https://me:planted@host/x"], ["pip", "install", "https://***@host/x"]),
        (["sh", "-c", "X_KEY=$'a' API_KEY=$'it\\'s planted'; x"], ["sh", "-c", "X_KEY=$'a' API_KEY=***; x"]),
        (["sh", "-c", 'A_PASSWORD=x\\ planted B_TOKEN=p"l \'" x'], ["sh", "-c", "A_PASSWORD=*** B_TOKEN=*** x"]),
        (["sh", "-c", 'A_PASSWORD="a\\"planted"\'b c\' x'], ["sh", "-c", "A_PASSWORD=*** x"]),
        (["sh", "-c", "x --token $'planted it' -y"], ["sh", "-c", "x --token *** -y"]),
        (["sh", "-c", "export 'A_PASSWORD=planted it' \"B=1\""], ["sh", "-c", "export 'A_PASSWORD=***' \"B=1\""]),
        (["sh", "-c", 'x "the password=planted" "a b"'], ["sh", "-c", 'x "the password=***" "a b"']),
        (["sh", "-c", 'x -H "PRIVATE-TOKEN: planted" "a b"'], ["sh", "-c", 'x -H "PRIVATE-TOKEN: ***" "a b"']),
        (["sh", "-c", "x -c 'A_TOKEN=planted x y'"], ["sh", "-c", "x -c 'A_TOKEN=*** x y'"]),
        (["python", "-c", "f(token='planted', n_tokens='5')"], ["python", "-c", "f(token=***, n_tokens='5')"]),
        (["python", "-c", "os.environ['HF_TOKEN']='planted'; x"], ["python", "-c", "os.environ['HF_TOKEN']=***; x"]),
        (["python", "-c", "f['max_tokens']=128; f['token_type']='bpe'"],) * 2,
        (["csh", "-c", "setenv HF_TOKEN planted; x"], ["csh", "-c", "setenv HF_TOKEN ***; x"]),
        (["csh", "-c", "setenv API_KEY 'planted it'"], ["csh", "-c", "setenv API_KEY ***"]),
        (["csh", "-c", "setenv MAX_TOKENS 128; setenv A 1"],) * 2,
        (["pip", "install", "tokenizers==1"], ["pip", "install", "tokenizers==1"]),
        (["x", "--tokenizer", "gpt2", "basic", "usage"], ["x", "--tokenizer", "gpt2", "basic", "usage"]),
    ],
)
def test_values_of_secret_names_are_hidden_in_a_command(words: list[str], shown: list[str]) -> None:
    assert hidden_command(words) == tuple(shown)


def test_variables_that_a_job_does_not_record_are_hidden_elsewhere_too() -> None:
    """The launcher, which must run where there is nothing but Python, has the wider list."""
    names = ("SSHPASS", "MYSQL_PWD", "SLURM_JWT", "HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "REGISTRY_AUTH",
             "A_COOKIE", "AWS_CREDENTIALS", "TLS_PRIVATE_KEY", "CLIENT_SECRET", "PASSPHRASE")  # fmt: skip
    assert all(is_secret(name, "planted") for name in names)
    assert not recorded({f"NCCL_{name}": "planted" for name in names})
    ordinary = {"cert", "cred", "key", "login", "private", "session"}  # in most names of variables no secret
    assert {word for word in _SECRET_NAME.pattern.split("|") if not is_secret(f"A_{word}", "planted")} == ordinary
    others = ("PWD", "OLDPWD", "PATH", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "AUTHOR", "PAD_TOKEN")
    assert not any(is_secret(name, "planted") for name in others)
    assert [is_secret("MAX_TOKENS", value) for value in ("131072", "1e6", "4k", "planted")] == [False] * 3 + [True]
    counts = {"tokens": ("-1", "1_000", "10000000000", "all"), "token-mixer": ("pooling",), "token": ("-1",)}
    counts |= {
        "bypass": ("conv",),
        "two-pass": ("on",),
        "token_type": ("bpe",),
        "class-token": ("mean", "first"),
        "token-file": ("tok-1.txt",),
    }
    counts |= {"token_embedding": ("learned",), "forward-pass": ("eager", "2")}
    assert not any(is_secret(name, value) for name, values in counts.items() for value in values)
    secrets = {
        "token": "10000000000",
        "token_type": "planted0planted",
        "bypass-token": "planted",
        "hf_token_ro": "planted",
    }
    secrets |= {
        "MLFLOW_PASS": "planted",
        "mlflow_pass": "planted",
        "GITHUB_TOKEN_CI": "planted",
        "DOTCOM_PASS": "planted",
    }
    assert all(is_secret(name, value) for name, value in secrets.items())


KEY = "+-----BEGIN RSA PRIVATE KEY-----\n+MIIplanted\n+-----END RSA PRIVATE KEY-----\n"


NAMES = ("passphrase", "credential", "api_key", "access_key", "private_key", "auth_key")
TOKENS = (
    *(f"glpat-{'p0' * 10}", f"AIza{'p0' * 18}", f"npm_{'p0' * 18}", f"pypi-{'p0' * 18}"),
    f"eyJ{'p0' * 6}.eyJ{'p0' * 6}.{'p0' * 6}",
)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("+password=planted", "+password=***"),
        ("+DB_PASSWORD: planted,)x", "+DB_PASSWORD: ***"),
        ('+  "password": "planted it",', '+  "password": ***,'),
        ("+os.environ['DB_PASSWORD']='planted'", "+os.environ['DB_PASSWORD']=***"),
        ("+def f(password: str = 'planted'):", "+def f(password: str = ***):"),
        ("+x --db-password planted -y", "+x --db-password *** -y"),
        ("+export SSHPASS=planted", "+export SSHPASS=***"),
        ("+export SSHPASS=$'it\\'s planted' x", "+export SSHPASS=*** x"),
        ('+password = "a\\"planted", x', "+password = ***, x"),
        ("+hydra.secret.value=planted", "+hydra.secret.value=***"),
        ("+MYSQL_PWD=planted x", "+MYSQL_PWD=*** x"),
        ("+aws_secret_access_key = planted/x", "+aws_secret_access_key = ***"),
        (f"+k = 'AKIA{'PLANTED7' * 2}'", "+k = '***'"),
        (f"+k = 'ghp_{'planted0' * 4}'", "+k = '***'"),
        (f"+k = 'hf_{'planted0' * 4}'", "+k = '***'"),
        (f"+k = 'nvapi-{'planted-0' * 4}'", "+k = '***'"),
        (f"+wandb.login(key='{'0badcafe' * 5}')", "+wandb.login(key='***')"),
        (f"+wandb login {'0badcafe' * 5}", "+wandb login ***"),
        (f"+u = 'https://hooks.slack.com/services/T0/B0/{'planted0' * 3}'", "+u = 'https://***'"),
        ("+HF_TOKEN = 'planted0planted0'", "+HF_TOKEN = '***'"),
        ('+h = {"Authorization": "Bearer planted-1"}', '+h = {"Authorization": "Bearer ***"}'),
        ("+pip install https://me:planted@host/x", "+pip install https://***@host/x"),
        ("+pip install https://me:planted@planted@host/x", "+pip install https://***@host/x"),
        (f"{KEY}+rest", "+***\n+rest"),
        (f"@@ -1 +1 @@\n{KEY[:45]}\n@@ -9 +9 @@\n+rest", "@@ -1 +1 @@\n+***\n@@ -9 +9 @@\n+rest"),
        (f" {'Planted9' * 8}\n+rest", " ***\n+rest"),
        (f'+x = (\n+    "{"Planted9" * 40}"\n+)', '+x = (\n+    "***"\n+)'),
        *((f"+my_{name} = 'planted'", f"+my_{name} = ***") for name in NAMES),
        *((f"+k = '{token}'", "+k = '***'") for token in TOKENS),
        ('+password = """planted\n+it"""\n+rest', "+password = ***\n+rest"),
        ("+secret = '''planted\n@@ -9 +9 @@\n+rest", "+secret = ***\n@@ -9 +9 @@\n+rest"),
        ('+password = f"planted it", x', "+password = ***, x"),
        ("+password = rb'plan\\'ted'", "+password = ***"),
        ("+def f(password: str | None = 'planted'):", "+def f(password: str | None = ***):"),
        ("+headers['Authorization'] = 'Basic planted0'", "+headers['Authorization'] = 'Basic ***'"),
        ("+add_header('Authorization', 'Basic planted0')", "+add_header('Authorization', 'Basic ***')"),
        ("+Authorization: planted0", "+Authorization: ***"),
        ("+wandb_key = 'planted'", "+wandb_key = ***"),
        ('+"""The password: """\n+rest', '+"""The password: ***"\n+rest'),
    ],
)
def test_secrets_in_code_are_replaced_and_counted(code: str, shown: str) -> None:
    assert redacted(code) == (shown, 1)


@pytest.mark.parametrize(
    "code",
    [
        "+max_tokens=128, pad_token_id = 50256",
        "+token = tokenizer(text)",
        "+password = getpass.getpass()",
        "+key_password: str | None = ...",
        "+password: str | None = Field(default=None)",
        '+allow_headers=["Authorization", "Content-Type"]',
        "+api_key = os.environ['KEY']",
        "+if password == other:",
        "+self._pwd = os.getcwd()",
        "+def f(password: str, secret: bytes | None = None):",
        "+image: docker://x@sha256:00ff",
        "+docker login -p $PASSWORD --password-stdin",
        f"+{'0123456789abcdef' * 4}  x.whl",
        f"+commit = '{'0badcafe' * 5}'; key = '{'0badcafe' * 8}'",
        "index 83baae61804e65cc73a7201a7252750c76066a30..f2ad6c76f0115a6ba5b00456a849810e7ec0af20 100644",
    ],
)
def test_ordinary_code_stays_as_it_is(code: str) -> None:
    assert redacted(code) == (code, 0)


@pytest.mark.parametrize(
    "part",
    [
        "a-",
        "password=",
        "token=",
        "-eyJ",
        "-",
        "\n",
        "--passwd ",
        "hf_",
        "'",
        "A1a",
        "token-",
        "0a",
        '"',
        "\\",
        "$'",
        "\\'",
        '\\"',
        "pwd=\\",
        "'_pwd=",
        "pwd=a'",
        'a_pwd="',
        "x_pwd=$'\\",
        'password="""',
        "password: a|",
        "Authorization: ",
        'x_pwd=a"\\"',
    ],
)
def test_hostile_text_takes_no_quadratic_time(part: str) -> None:
    began = time.process_time()
    redacted(part * (300_000 // len(part)))
    hidden_command((part * (30_000 // len(part)), "-c", part * (30_000 // len(part)) + "=x"))
    assert time.process_time() - began < 5
