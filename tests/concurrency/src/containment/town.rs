//! A server with hostile and harmless roles.

use anyhow::{Context, Result, ensure};
use tokio_postgres::config::Config;

use super::{GRANTS, PREPARE, SETTINGS, plants};
use crate::cluster::Cluster;
use crate::{Session, TestDb};

/// A background worker in every database, with a short interval.
const SERVE_ALL: &str = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '100ms'";

/// olga owns the database, carol creates the extension, and `app` uses it. mallory and the stranger
/// may connect and create in the schema public, as every role could before PostgreSQL 15.
const ROLES: &str = "CREATE ROLE olga LOGIN; CREATE ROLE carol LOGIN; CREATE ROLE app LOGIN;
    CREATE ROLE mallory LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE dave LOGIN;
    CREATE ROLE producer LOGIN; CREATE ROLE consumer LOGIN";

/// A database with many roles. Only `postgres` is a superuser.
pub struct Town {
    // Dropped before the database.
    pub admin: Session,
    pub db: TestDb,
    pub cluster: Cluster,
}

impl Town {
    pub async fn found() -> Result<Self> {
        let cluster = Cluster::start_with(&format!("{SETTINGS}\n{SERVE_ALL}"))?;
        let db = TestDb::create_empty(&cluster.config()).await?;
        let admin = db.session().await?;
        admin.run(ROLES).await?;
        admin.run(&format!("ALTER DATABASE {} OWNER TO olga", db.name())).await?;
        admin.run(&format!("GRANT CREATE ON DATABASE {} TO carol", db.name())).await?;
        admin.run("GRANT ALL ON SCHEMA public TO PUBLIC; SET search_path = pg_catalog").await?;
        Ok(Self { admin, db, cluster })
    }

    /// Open a session of a role.
    pub async fn role(&self, name: &str) -> Result<Session> {
        Ok(Session::open(&as_role(self.db.config(), name)).await?)
    }

    /// Let carol create the extension and give `app` every right.
    pub async fn extension(&self) -> Result<Session> {
        let carol = self.role("carol").await?;
        carol.run("SET search_path = public").await?;
        carol.run("CREATE EXTENSION queen_mq SCHEMA public").await.context("CREATE EXTENSION")?;
        carol.run(GRANTS).await.context("grants by the owner")?;
        carol.run(PREPARE).await?;
        Ok(carol)
    }

    /// Check that no plant ran as another role than the one that planted it.
    pub fn harvest_is_empty(&self) -> Result<()> {
        let logged = self.cluster.logged()?;
        let found = plants::harvest(&logged);
        let n = found.len();
        ensure!(n == 0, "{n} plants ran with the rights of others: {:#?}", &found[..n.min(20)]);
        Ok(())
    }

    /// Roles, memberships, owners and privileges.
    pub async fn rights(&self) -> Result<Vec<String>> {
        let sql = "SELECT concat_ws(' ', 'role', rolname, rolsuper, rolcreaterole, rolcreatedb,
                       rolreplication, rolbypassrls) FROM pg_roles
            UNION ALL SELECT concat_ws(' ', 'member', roleid::regrole, member::regrole,
                admin_option) FROM pg_auth_members
            UNION ALL SELECT concat_ws(' ', 'relation', oid::regclass, relowner::regrole, relacl)
                FROM pg_class
                WHERE relpersistence <> 't' AND relkind <> 't' AND relkind <> 'i'
            UNION ALL SELECT concat_ws(' ', 'function', oid::regprocedure, proowner::regrole,
                proacl, prosecdef) FROM pg_proc
                WHERE pronamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_temp')
            UNION ALL SELECT concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl)
                FROM pg_namespace
                WHERE nspname !~ '^pg_(toast_)?temp'
            UNION ALL SELECT concat_ws(' ', 'database', datname, datdba::regrole, datacl)
                FROM pg_database
            ORDER BY 1";
        Ok(self.admin.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
    }
}

/// Connect as this role to the same database.
pub fn as_role(config: &Config, role: &str) -> Config {
    let mut config = config.clone();
    // The test's own statements use PostgreSQL's own names, whatever search_path the database sets.
    config.user(role).options("-c search_path=pg_catalog");
    config
}
