//! What a session remembers of a role's rights: it is read again when it may have changed, and only
//! then. That grants and memberships are noticed is in `queen_rights`.

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Session, TestDb};

const PUSH: &str = "SELECT queen_push('q', '1')";

/// A server of its own, since roles belong to all databases of a server, with the role `app`, and
/// an extension that belongs to the role `installer`.
async fn place() -> Result<(Cluster, TestDb, Session)> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create_empty(&cluster.config()).await?;
    let admin = db.session().await?;
    admin
        .run(
            "CREATE ROLE app LOGIN; CREATE ROLE installer SUPERUSER; CREATE ROLE heir SUPERUSER;
             SET ROLE installer; CREATE EXTENSION queen_mq; RESET ROLE",
        )
        .await?;
    Ok((cluster, db, admin))
}

async fn app(db: &TestDb) -> Result<Session> {
    let mut config = db.config().clone();
    config.user("app");
    Ok(Session::open(&config).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_are_not_read_again_when_a_table_is_created() -> Result<()> {
    let (_cluster, db, admin) = place().await?;
    admin.run("SELECT queen_grant('app', 'push', 'q')").await?;
    let app = app(&db).await?;
    let scans = "SELECT seq_scan + idx_scan FROM pg_stat_all_tables
                 WHERE relid = 'queen_mq.grants'::regclass";
    let mut read = Vec::new();
    for number in 0..3 {
        app.run(&format!("CREATE TEMP TABLE t{number} (); {PUSH}")).await?;
        admin.run(&format!("CREATE TABLE t{number} ()")).await?;
        app.run(&format!("{PUSH}; SELECT pg_stat_force_next_flush()")).await?;
        read.push(admin.count(scans).await?);
    }
    ensure!(read[0] > 0 && read.iter().all(|scans| *scans == read[0]), "{read:?}");
    admin.run("SELECT queen_revoke('app', 'push', 'q')").await?;
    app.run(PUSH).await.fails_with("42501")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_end_with_the_extension_and_with_its_owner() -> Result<()> {
    let (_cluster, db, admin) = place().await?;
    admin.run("SELECT queen_grant('app', 'push', 'q')").await?;
    let app = app(&db).await?;
    for _ in 0..2 {
        app.run(PUSH).await?;
        // EXECUTE is there again, the grant is not.
        admin
            .run(
                "DROP EXTENSION queen_mq; SET ROLE installer; CREATE EXTENSION queen_mq;
                 GRANT EXECUTE ON FUNCTION queen_push TO app; RESET ROLE",
            )
            .await?;
        let refused = app.run(PUSH).await.fails_with("42501")?;
        ensure!(refused.message().contains("queue"), "{refused:?}");
        admin.run("SELECT queen_grant('app', 'push', 'q')").await?;
    }
    admin.run("SELECT queen_revoke('app', 'push', 'q'); GRANT installer TO app").await?;
    admin.run("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO app").await?;
    app.run(PUSH).await.context("as a member of the owner")?;
    admin.run("REASSIGN OWNED BY installer TO heir").await?;
    app.run(PUSH).await.fails_with("42501")?;
    admin.run("GRANT heir TO app").await?;
    app.run(PUSH).await.context("as a member of the new owner")?;
    Ok(())
}
