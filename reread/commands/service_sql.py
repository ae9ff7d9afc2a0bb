"""Print the SQL that makes the role in PostgreSQL.

Where there is one, it gets the password of the settings.

reread service sql | sudo -u postgres psql

The role may create databases and no more. It creates its own when the service starts.
"""

from reread.commands.service_settings import SETTINGS, Settings, read_settings


def command(settings: Settings = SETTINGS) -> None:
    read = read_settings(settings)
    role = read.database_user
    password = read.database_password.get_secret_value().replace("'", "''")
    print(
        f"SELECT 'CREATE ROLE {role}' WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{role}') \\gexec\n"
        f"ALTER ROLE {role} WITH LOGIN CREATEDB PASSWORD '{password}';"
    )
