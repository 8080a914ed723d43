use rstest::rstest;

use super::*;

const KEEP: bool = true;
const STRIP: bool = false;

fn applied(body: &str, splices: Splices) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    String::from_utf8(splices.apply(body).flatten().collect()).unwrap()
}

fn to_processor(body: &str, route: bool, keep_ids: bool) -> String {
    let fields = Fields::read(body).unwrap();
    let splices = fields.for_processor(body.as_bytes(), route, keep_ids);
    applied(body, splices.unwrap())
}

fn to_worker(body: &str, keep_ids: bool, field: Option<TokenField>) -> String {
    let fields = Fields::read(body).unwrap();
    let ids = field.map(|field| (field, Bytes::from_static(b"[1,2]")));
    let splices = fields.for_worker(body.as_bytes(), keep_ids, ids);
    applied(body, splices.unwrap())
}

#[rstest]
#[case::not_given(r#"{"model":"m"}"#, None)]
#[case::on(r#"{"route": true}"#, Some(true))]
#[case::off(r#"{"route":false}"#, Some(false))]
#[case::not_ours(r#"{"route":"true"}"#, None)]
#[case::null(r#"{"route":null}"#, None)]
fn only_a_boolean_route_is_the_clients_wish(#[case] body: &str, #[case] wish: Option<bool>) {
    let fields = Fields::read(body).unwrap();
    assert_eq!(fields.client_route(body.as_bytes()), wish);
}

#[rstest]
#[case::added(r#"{"model":"m"}"#, true, r#"{"model":"m","route":true}"#)]
#[case::there(r#"{"route":true,"model":"m"}"#, true, r#"{"route":true,"model":"m"}"#)]
#[case::overridden(r#"{"route":true}"#, false, r#"{"route":false}"#)]
#[case::not_needed(r#"{"model":"m"}"#, false, r#"{"model":"m"}"#)]
#[case::not_ours(r#"{"route":[1]}"#, true, r#"{"route":[1]}"#)]
fn the_processor_is_told_whether_to_route(
    #[case] body: &str,
    #[case] route: bool,
    #[case] expected: &str,
) {
    assert_eq!(to_processor(body, route, STRIP), expected);
}

#[rstest]
#[case::field(r#"{"token_ids":[9],"a":1}"#, r#"{"a":1}"#)]
#[case::inner(r#"{"nvext":{"token_data":[9],"b":2}}"#, r#"{"nvext":{"b":2}}"#)]
#[case::inner_twice(
    r#"{"a":1,"nvext":{"token_data":[9],"b":2,"token\u005fdata":[8]}}"#,
    r#"{"a":1}"#
)]
#[case::inner_unreadable(r#"{"token_ids":[9],"nvext":{"\ud800":1},"a":1}"#, r#"{"a":1}"#)]
#[case::both(r#"{"token_ids":[9],"nvext":{"token_data":[9]}}"#, r#"{"nvext":{}}"#)]
#[case::nvext_of_another_type(
    r#"{"nvext":[{"token_data":[9]}]}"#,
    r#"{"nvext":[{"token_data":[9]}]}"#
)]
fn the_clients_ids_go_nowhere(#[case] body: &str, #[case] expected: &str) {
    assert_eq!(to_processor(body, false, STRIP), expected);
    assert_eq!(to_worker(body, STRIP, None), expected);
    assert_eq!(to_worker(body, KEEP, None), body);
}

#[rstest]
#[case::added(r#"{"a":1}"#, r#"{"a":1,"token_ids":[1,2]}"#)]
#[case::in_place_of_the_clients(r#"{"token_ids":"x","a":1}"#, r#"{"token_ids":[1,2],"a":1}"#)]
#[case::without_route(r#"{"a":1,"route":true}"#, r#"{"a":1,"token_ids":[1,2]}"#)]
#[case::route_not_ours(r#"{"route":1}"#, r#"{"route":1,"token_ids":[1,2]}"#)]
#[case::spaces_around(" {} \n", " {\"token_ids\":[1,2]} \n")]
fn ids_are_put_into_their_field(#[case] body: &str, #[case] expected: &str) {
    assert_eq!(to_worker(body, STRIP, Some(TokenField::TokenIds)), expected);
}

#[rstest]
#[case::new(r#"{"a":1}"#, r#"{"a":1,"nvext":{"token_data":[1,2]}}"#)]
#[case::beside_others(r#"{"nvext": {"b":2} }"#, r#"{"nvext": {"b":2,"token_data":[1,2]} }"#)]
#[case::in_place(r#"{"nvext":{"token_data":[]}}"#, r#"{"nvext":{"token_data":[1,2]}}"#)]
#[case::in_place_of_null(r#"{"nvext":null}"#, r#"{"nvext":{"token_data":[1,2]}}"#)]
#[case::last_of_two(
    r#"{"nvext":{"token_data":[7],"token_data":[8]},"token_ids":[9]}"#,
    r#"{"nvext":{"token_data":[1,2]}}"#
)]
fn ids_are_put_where_workers_of_dynamo_read_them(#[case] body: &str, #[case] expected: &str) {
    let field = Some(TokenField::NvextTokenData);
    assert_eq!(to_worker(body, STRIP, field), expected);
}
