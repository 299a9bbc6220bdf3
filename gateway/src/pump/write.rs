//! From a row of the outbox to what a driver delivers: its id, its mark, and the notice of a gap.
//!
//! A body was encoded when it came about and is sent byte for byte; only a mark that is asked for
//! is put into its envelope here. Source: design page "What leaves the gateway".

use bytes::Bytes;
use tidegate_drivers::Payload;
use tidegate_drivers::north::{Encode, Envelope};
use tidegate_engine::store::{Gap, OutboxRow};

/// Makes payloads for one sink.
#[derive(Debug, Clone)]
pub struct Writer {
    /// The gateway's name, the beginning of each record id.
    pub gateway: String,
    /// How the sink's records are written.
    pub encode: Encode,
    /// Whether the envelope says which records waited.
    pub mark: bool,
}

/// What the envelope says of a record that waited.
const MARK: &[u8] = b"\"_replayed\":true";

impl Writer {
    /// A row as a driver takes it. `replayed`: it waited while there was no connection.
    pub(super) fn payload(&self, row: &OutboxRow, replayed: bool) -> Payload {
        // The row's own epoch: rows may have waited since before the store was made anew.
        let prefix = format!("{}/{}/{}", self.gateway, row.epoch, row.stream);
        let (id, body) = match &row.gap {
            None => (format!("{prefix}/{}", row.seq), row.body.clone()),
            Some(gap) => self.notice(&prefix, gap),
        };
        let body = if self.mark && replayed { marked(&body) } else { body };
        Payload { id, stream: row.stream.clone(), body, replayed }
    }

    /// The notice of a gap, with an id that no record has.
    fn notice(&self, prefix: &str, gap: &Gap) -> (String, Bytes) {
        let Gap { from, to, reason } = gap;
        let id = format!("{prefix}/{from}-{to}");
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let Encode::Json(json) = &self.encode;
        let own = match json.envelope.unwrap_or(Envelope::Meta) {
            Envelope::Meta => format!("\"_id\":{},", text(&id)),
            Envelope::None => String::new(),
        };
        let (from, to) = (text(&format!("{prefix}/{from}")), text(&format!("{prefix}/{to}")));
        let reason = text(reason.as_str());
        let gap = format!("\"gap\":{{\"from\":{from},\"to\":{to},\"reason\":{reason}}}");
        (id, format!("{{{own}{gap}}}").into())
    }
}

/// The same JSON object with the mark as its first member; what is none is left as it is.
fn marked(body: &Bytes) -> Bytes {
    let Some(rest) = body.strip_prefix(b"{") else {
        return body.clone();
    };
    let mut marked = Vec::with_capacity(body.len() + MARK.len() + 1);
    marked.push(b'{');
    marked.extend_from_slice(MARK);
    if !rest.starts_with(b"}") {
        marked.push(b',');
    }
    marked.extend_from_slice(rest);
    marked.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidegate_drivers::north::JsonEncode;
    use tidegate_engine::store::GapReason;

    use super::*;

    fn writer(envelope: Envelope, mark: bool) -> Writer {
        let json = JsonEncode { envelope: Some(envelope), ..JsonEncode::default() };
        Writer { gateway: "gw".to_owned(), encode: Encode::Json(json), mark }
    }

    fn row(body: &str, gap: Option<Gap>) -> OutboxRow {
        OutboxRow {
            position: 9,
            epoch: 3,
            stream: "energy".into(),
            seq: 20,
            body: Bytes::copy_from_slice(body.as_bytes()),
            window: None,
            created: 0,
            gap,
        }
    }

    fn json(payload: &Payload) -> Value {
        serde_json::from_slice(&payload.body).unwrap()
    }

    #[test]
    fn a_record_is_sent_as_it_was_encoded() {
        let row = row("{\"_id\":\"gw/3/energy/20\",\"u\":1.5}", None);
        for replayed in [false, true] {
            let payload = writer(Envelope::Meta, false).payload(&row, replayed);
            assert_eq!(payload.body, row.body);
            assert_eq!((&*payload.id, payload.replayed), ("gw/3/energy/20", replayed));
        }
        assert_eq!(writer(Envelope::Meta, true).payload(&row, false).body, row.body);
    }

    #[test]
    fn the_mark_is_a_member_of_the_same_object() {
        let marks = writer(Envelope::Meta, true);
        let marked = |body: &str| json(&marks.payload(&row(body, None), true));
        assert_eq!(
            marked("{\"_id\":\"x\",\"u\":1}"),
            json!({"_replayed": true, "_id": "x", "u": 1})
        );
        assert_eq!(marked("{}"), json!({"_replayed": true}));
        let other = marks.payload(&row("[1]", None), true);
        assert_eq!(&other.body[..], b"[1]", "what is no object stays as it is");
    }

    #[test]
    fn a_gap_is_told_with_ids_of_its_records_and_one_of_its_own() {
        let gap = Gap { from: 17, to: 20, reason: GapReason::Dropped };
        let inner = json!({"from": "gw/3/energy/17", "to": "gw/3/energy/20", "reason": "dropped"});
        let meta = writer(Envelope::Meta, true);
        let told = meta.payload(&row("", Some(gap)), false);
        assert_eq!((&*told.id, &*told.stream), ("gw/3/energy/17-20", "energy"));
        assert_eq!(json(&told), json!({"_id": "gw/3/energy/17-20", "gap": inner}));
        let late = json(&meta.payload(&row("", Some(gap)), true));
        assert_eq!(late["_replayed"], true);

        let gap = Gap { reason: GapReason::Expired, ..gap };
        let bare = json(&writer(Envelope::None, false).payload(&row("", Some(gap)), false));
        assert_eq!(bare["gap"]["reason"], "expired");
        assert_eq!(bare.as_object().unwrap().len(), 1, "{bare}");
    }
}
