//! What a revoke takes, and what it leaves.

use anyhow::Result;
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Session, TestDb};

const PUSH: &str = "SELECT queen_push('q', '1')";

async fn as_role(db: &TestDb, name: &str) -> Result<Session> {
    let mut config = db.config().clone();
    config.user(name);
    Ok(Session::open(&config).await?)
}

/// EXECUTE that another role has granted goes with that role's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_from_one_role_leaves_others_what_they_were_granted() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = &db.session().await?;
    admin
        .run(
            "CREATE ROLE one LOGIN;
             CREATE ROLE other LOGIN;
             SELECT queen_grant('one', 'push', 'q');
             GRANT EXECUTE ON FUNCTION queen_push TO one WITH GRANT OPTION;
             SET ROLE one;
             GRANT EXECUTE ON FUNCTION queen_push TO other;
             RESET ROLE;
             SELECT queen_grant('other', 'push', 'q'), queen_revoke('one', 'push')",
        )
        .await?;
    let grants =
        "SELECT string_agg(concat_ws(' ', role, privilege, queue), ', ') FROM queen_grants";
    assert_eq!(admin.query_one(grants, &[]).await?.get::<_, &str>(0), "other push q");
    as_role(&db, "other").await?.run(PUSH).await?;
    as_role(&db, "one").await?.run(PUSH).await.fails_with("42501")?;
    Ok(())
}
