//! Names of headers, which are compared without case: `x-a` and `X-A` are the same.

use std::collections::BTreeSet;

/// The entries without those whose header an earlier one has. Gateway API requires this for matches and for filters:
/// the list of the object is a map by exact name, so the API server accepts names that differ in case.
pub(super) fn first_of_each<T>(
    entries: impl IntoIterator<Item = T>,
    name: fn(&T) -> &str,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let entries = entries.into_iter();
    entries
        .filter(|entry| seen.insert(name(entry).to_ascii_lowercase()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::world::{HttpRoute, RouteFilter, project};

    fn route(rule: Value) -> HttpRoute {
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"namespace": "ns", "name": "r"}, "spec": {"rules": [rule]}});
        project::http_route(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn match_of_a_header_that_was_matched_before_is_ignored() {
        let headers = json!([
            {"name": "x-a", "value": "1"},
            {"name": "X-A", "value": "2", "type": "RegularExpression"},
            {"name": "x-b", "value": "3"},
        ]);
        // The names of query parameters do have case.
        let query = json!([{"name": "a", "value": "1"}, {"name": "A", "value": "2"}]);
        let route = route(json!({"matches": [{"headers": headers, "queryParams": query}]}));
        let found = &route.rules[0].matches[0];
        let headers: Vec<_> = found
            .headers
            .iter()
            .map(|one| (&*one.name, &*one.value))
            .collect();
        assert_eq!(headers, [("x-a", "1"), ("x-b", "3")]);
        assert_eq!(found.query.len(), 2);
    }

    #[test]
    fn filter_for_a_header_that_an_earlier_entry_has_is_ignored() {
        let pairs = json!([{"name": "x-a", "value": "1"}, {"name": "X-A", "value": "2"}, {"name": "x-b", "value": "3"}]);
        for (kind, field) in [
            ("RequestHeaderModifier", "requestHeaderModifier"),
            ("ResponseHeaderModifier", "responseHeaderModifier"),
        ] {
            let edit = json!({"set": pairs, "add": pairs, "remove": ["x-c", "X-C"]});
            let filter = json!({"type": kind, field: edit});
            let backend = json!({"name": "web", "port": 80, "filters": [filter]});
            let route = route(json!({"filters": [filter], "backendRefs": [backend]}));
            let rule = &route.rules[0];
            for filter in [&rule.filters[0], &rule.backends[0].filters[0]] {
                let (RouteFilter::RequestHeaders(edit) | RouteFilter::ResponseHeaders(edit)) =
                    filter
                else {
                    panic!("{filter:?}");
                };
                let wanted = [
                    ("x-a".to_owned(), "1".to_owned()),
                    ("x-b".to_owned(), "3".to_owned()),
                ];
                assert_eq!((&edit.set[..], &edit.add[..]), (&wanted[..], &wanted[..]));
                assert_eq!(edit.remove, ["x-c"]);
            }
        }
    }
}
