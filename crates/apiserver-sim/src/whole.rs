//! An object as text around its status, so that another status makes another text and no tree. Pure.

use std::sync::Arc;

use serde_json::Value;

/// A status and the set of its fields, as JSON text.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) status: String,
    pub(crate) fields: String,
    /// By which it is right.
    pub(crate) schema: Arc<Value>,
}

/// An object whose status is one manager's alone, applied at once.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) manager: Arc<str>,
    pub(crate) plain: Arc<Plain>,
    /// When the manager came to own these fields.
    time: String,
    frame: Arc<Frame>,
}

/// The text of an object without what an apply on its status changes.
#[derive(Debug)]
struct Frame {
    /// Before the metadata, between it and the status, and after.
    object: [String; 3],
    /// Metadata without the manager's fields, their time, and the resource version.
    metadata: [String; 4],
}

/// Stands where text is cut: a text that holds it, as an annotation may, is not cut.
const CUT: &str = "\u{1}";
/// The same as JSON text.
const CUT_JSON: &str = r#""\u0001""#;

fn cut<const PIECES: usize>(value: &Value) -> Option<[String; PIECES]> {
    let text = value.to_string();
    let pieces: Vec<String> = text.split(CUT_JSON).map(str::to_owned).collect();
    pieces.try_into().ok()
}

// === impl Whole ===

impl Whole {
    /// Of an object that has this status, and in whose managed fields this manager's entry on it stands. None where it
    /// cannot be cut.
    pub(crate) fn of(mut object: Value, manager: &str, plain: Arc<Plain>) -> Option<Self> {
        let mut metadata = object.get_mut("metadata")?.take();
        let entries = metadata.get_mut("managedFields")?.as_array_mut()?;
        let own = entries.iter_mut().find(|entry| {
            let has = |field: &str, text: &str| entry.get(field).is_some_and(|one| one == text);
            has("manager", manager) && has("operation", "Apply") && has("subresource", "status")
        })?;
        let time = own.get("time")?.as_str()?.to_owned();
        // in the order of the text: its fields are sorted
        own["fieldsV1"] = CUT.into();
        own["time"] = CUT.into();
        metadata["resourceVersion"] = CUT.into();
        object["metadata"] = CUT.into();
        object["status"] = CUT.into();
        let frame = Frame {
            object: cut(&object)?,
            metadata: cut(&metadata)?,
        };
        Some(Self {
            manager: manager.into(),
            plain,
            time,
            frame: frame.into(),
        })
    }

    /// The same object with another status, applied now.
    pub(crate) fn with(&self, plain: Arc<Plain>, now: String) -> Self {
        let same = self.plain.fields == plain.fields;
        Self {
            time: if same { self.time.clone() } else { now },
            plain,
            ..self.clone()
        }
    }

    /// The object's text.
    pub(crate) fn text(&self, version: u64) -> String {
        let [before, between, after] = self.frame.object.each_ref();
        let metadata = self.metadata(version);
        [before, &metadata, between, &self.plain.status, after]
            .map(String::as_str)
            .concat()
    }

    /// Its metadata's.
    pub(crate) fn metadata(&self, version: u64) -> String {
        let [first, second, third, last] = self.frame.metadata.each_ref();
        let time = format!("\"{}\"", self.time);
        let version = format!("\"{version}\"");
        [
            first,
            &self.plain.fields,
            second,
            &time,
            third,
            &version,
            last,
        ]
        .map(String::as_str)
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk(annotation: &str) -> Option<Whole> {
        let object = json!({
            "apiVersion": "v", "kind": "K",
            "metadata": {
                "annotations": {"a": annotation}, "name": "n", "resourceVersion": "7", "uid": "u",
                "managedFields": [
                    {"manager": "m", "operation": "Apply", "time": "t", "fieldsV1": {"f:metadata": {}}},
                    {"manager": "m", "operation": "Apply", "time": "t", "subresource": "status", "fieldsV1": {}},
                ],
            },
            "status": {"old": 1},
        });
        Whole::of(object, "m", plain("{}"))
    }

    fn plain(fields: &str) -> Arc<Plain> {
        let (status, fields) = (r#"{"new":2}"#.to_owned(), fields.to_owned());
        let schema = Arc::default();
        Arc::new(Plain {
            status,
            fields,
            schema,
        })
    }

    #[test]
    fn another_status_is_put_into_the_same_object() {
        let whole = mk("x").expect("it can be cut");
        let text = whole
            .with(plain(r#"{"f:status":{}}"#), "later".to_owned())
            .text(8);
        let object: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(object["status"], json!({"new": 2}));
        let metadata = &object["metadata"];
        assert_eq!(metadata["resourceVersion"], "8");
        assert_eq!(metadata["uid"], "u");
        let entries = &metadata["managedFields"];
        assert_eq!(entries[0]["time"], "t");
        assert_eq!(entries[1]["time"], "later");
        assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {}}));
        // who owned these fields already still does since then
        let text = whole.with(plain("{}"), "later".to_owned()).text(8);
        let object: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(object["metadata"]["managedFields"][1]["time"], "t");
    }

    #[test]
    fn an_object_that_holds_the_mark_is_not_cut() {
        assert!(mk(CUT).is_none());
    }
}
