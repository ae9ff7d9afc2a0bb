"""The settings of a team's service: service.env, or variables of the same names, which take precedence.

The file is read alike by `reread`, by systemd (EnvironmentFile) and by docker compose (--env-file). It contains
passwords, so that no other user may read it.
"""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from reread.storage.errors import InputError
from reread.storage.files import write_text
from reread.storage.secret import PRIVATE, draw, refuse_readable

PREFIX = "REREAD_SERVICE_"
SETTINGS = Path("service.env")
SHORTEST_PASSWORD = 12
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Settings = Annotated[
    Path, typer.Option("--settings", metavar="FILE", help="Settings of the service; `reread service init` writes them.")
]


class ServiceSettings(BaseSettings):
    """The settings; the variable of one is REREAD_SERVICE_ and the field's name in capitals.

    There is no default password: each has to be given.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True)

    database: str = Field("127.0.0.1:5432", pattern=r"^[^/@\s]+:\d+$", description="HOST:PORT of PostgreSQL")
    database_user: Name = Field("reread", description="role of PostgreSQL that may create databases")
    database_prefix: Name = Field("reread", description="beginning of the names of the two databases")
    database_password: SecretStr = Field(description="password of that role")
    prefect_password: SecretStr = Field(description="password of Prefect's API and page, whose user is `reread`")
    mlflow_password: SecretStr = Field(description="password of MLflow's user `admin`")
    mlflow_secret: SecretStr = Field(description="key with which MLflow signs its forms; any long random text")
    host: str = Field("127.0.0.1", description="address that both servers listen on")
    prefect_port: Port = Field(4200, description="port of Prefect's server")
    mlflow_port: Port = Field(5000, description="port of MLflow's server")
    mlflow_workers: Annotated[int, Field(ge=1)] = Field(2, description="processes of MLflow's server")
    hosts: str = Field(
        "", description="names by which clients reach both servers, separated by commas; localhost needs none"
    )
    artifacts: str = Field("service-artifacts", description="folder of MLflow's artifacts, or s3://BUCKET/PATH")

    @field_validator("database_password", "prefect_password", "mlflow_password", "mlflow_secret")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value()) < SHORTEST_PASSWORD:
            raise ValueError(f"it must have {SHORTEST_PASSWORD} characters or more")
        return value

    @property
    def databases(self) -> dict[str, str]:
        """The names of the two databases, by the server that uses them."""
        return {name: f"{self.database_prefix}_{name}" for name in ("prefect", "mlflow")}

    def url(self, server: str, driver: str = "") -> str:
        """Return the URL of a server's database; ``driver`` is SQLAlchemy's (asyncpg, psycopg2)."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        password = quote(self.database_password.get_secret_value(), safe="")
        return f"{scheme}://{self.database_user}:{password}@{self.database}/{self.databases[server]}"

    @property
    def prefect_auth(self) -> str:
        """The auth string of Prefect: USER:PASSWORD."""
        return f"reread:{self.prefect_password.get_secret_value()}"

    @property
    def mlflow_auth(self) -> str:
        """USER:PASSWORD of MLflow's administrator."""
        return f"admin:{self.mlflow_password.get_secret_value()}"

    @property
    def names(self) -> list[str]:
        """The names by which clients reach the servers."""
        return [name for name in map(str.strip, self.hosts.split(",")) if name]

    @property
    def reached_at(self) -> str:
        """The address at which this machine reaches the servers."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host

    @property
    def prefect_page(self) -> str:
        return f"http://{self.reached_at}:{self.prefect_port}"

    @property
    def mlflow_page(self) -> str:
        return f"http://{self.reached_at}:{self.mlflow_port}"

    def artifacts_destination(self) -> str:
        """Return the folder (absolute) or URL of MLflow's artifacts."""
        return self.artifacts if "://" in self.artifacts else str(Path(self.artifacts).resolve())


def read_settings(file: Path) -> ServiceSettings:
    """Read the settings; InputError names the first that is missing or wrong, and a file that others may read."""
    if file.exists():
        refuse_readable(file)
    try:
        return ServiceSettings(_env_file=file)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = f"{PREFIX}{str(first['loc'][0]).upper()}"
        if first["type"] == "missing":
            where = f"in {file}" if file.exists() else f"({file} does not exist)"
            raise InputError(f"{name} is missing {where}: write the settings with `reread service init`") from None
        raise InputError(f"{name} is wrong: {first['msg'].removeprefix('Value error, ')}") from None


def write_settings(file: Path) -> None:
    """Write settings with random passwords to ``file``, which only its owner may read.

    InputError where the file exists: its passwords are those of a service.
    """
    lines = []
    for name, field in ServiceSettings.model_fields.items():
        value = draw() if field.is_required() else field.default
        comment = "" if field.is_required() else "# "
        lines += [f"# {field.description}", f"{comment}{PREFIX}{name.upper()}={value}", ""]
    if file.exists():
        raise InputError(f"{file} exists: a service has its passwords; move it away first")
    write_text(file, "\n".join(lines), PRIVATE)


def table() -> list[tuple[str, str, str]]:
    """Return (variable, default, description) of each setting; one without a default is drawn by ``write_settings``."""
    return [
        (f"{PREFIX}{name.upper()}", "drawn" if field.is_required() else str(field.default), field.description or "")
        for name, field in ServiceSettings.model_fields.items()
    ]
