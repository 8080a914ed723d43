//! Bodies as values, with the field at fault where there is none.

use metadata::Fault;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// What names a field that the path to an error leaves out.
const OF_PARENT: [&str; 2] = ["missing field `", "duplicate field `"];

/// Reads a whole body.
///
/// # Errors
/// [`Fault::InvalidParameter`] with the field, or `body`.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| explain::<T>(body, &error))
}

/// Reads it again, slower, for the path to what is wrong.
#[cold]
fn explain<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> Fault {
    let why = error.to_string();
    if error.classify() != Category::Data {
        return Fault::invalid("body", why);
    }
    let mut again = serde_json::Deserializer::from_slice(body);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
        Err(error) => error.path().to_string(),
        Ok(_) => ".".to_owned(),
    };
    let why = why.rsplit_once(" at line ").map_or(&*why, |(what, _)| what);
    let named = OF_PARENT.iter().find_map(|begin| {
        let (name, _) = why.strip_prefix(begin)?.split_once('`')?;
        Some(name)
    });
    let field = match (path.as_str(), named) {
        (".", Some(name)) => name.to_owned(),
        (".", None) => "body".to_owned(),
        (parent, Some(name)) => format!("{parent}.{name}"),
        (path, None) => path.to_owned(),
    };
    Fault::invalid(field, why)
}

#[cfg(test)]
mod tests {
    use metadata::wire::{batch::Batch, load::Add};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "body")]
    #[case("{\"cluster\":\"c\"", "body")]
    #[case("null", "body")]
    #[case("{}", "cluster")]
    #[case(r#"{"cluster":"c","cluster":"d"}"#, "cluster")]
    #[case(r#"{"cluster":"","request_id":"r","ip":"10.0.0.1"}"#, "cluster")]
    #[case(r#"{"cluster":"c","request_id":"r","ip":"junk"}"#, "ip")]
    #[case(
        r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1","prompt_length":-1}"#,
        "prompt_length"
    )]
    #[case(
        r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1","prompt_length":3e9}"#,
        "prompt_length"
    )]
    #[case(r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"} x"#, "body")]
    fn a_refusal_names_the_field(#[case] body: &str, #[case] expected: &str) {
        match parse::<Add>(body.as_bytes()) {
            Err(Fault::InvalidParameter { field, why }) => assert_eq!(field, expected, "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_names_the_place_in_a_list() {
        let body = r#"{"cluster":"c","instance":"i","epoch":1,"seq":1,"lease_ms":1000,"live":1,
            "prompt_sum":0,"puts":[{"request_id":"r"}]}"#;
        let fault = parse::<Batch>(body.as_bytes()).unwrap_err();
        assert_eq!(fault.to_string(), "puts[0].ip: missing field `ip`");
    }
}
