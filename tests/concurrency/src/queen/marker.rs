//! Markers.

use serde_json::Value;
use tokio_postgres::Error;

use crate::Session;

/// The row of a marker write.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub applied: bool,
    pub value: Option<Value>,
    pub version: Option<i64>,
    pub reason: Option<String>,
}

/// `queen_kv_put_if_absent` with an interval as its ttl.
pub async fn put_if_absent(
    session: &Session,
    ns: &str,
    key: &str,
    value: &Value,
    ttl: &str,
) -> Result<Applied, Error> {
    let row = session
        .row(
            "SELECT applied, value, version, reason FROM queen_kv_put_if_absent($1, $2, $3, \
             ttl => $4::text::interval)",
            &[&ns, &key, &value, &ttl],
        )
        .await?;
    Ok(Applied {
        applied: row.get("applied"),
        value: row.get("value"),
        version: row.get("version"),
        reason: row.get("reason"),
    })
}

/// The value of a marker, or None if there is no marker.
pub async fn marker(session: &Session, ns: &str, key: &str) -> Result<Option<Value>, Error> {
    let row = session.row("SELECT found, value FROM queen_kv_get($1, $2)", &[&ns, &key]).await?;
    let found: bool = row.get("found");
    Ok(if found { row.get("value") } else { None })
}
