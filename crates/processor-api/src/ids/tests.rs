use proptest::prelude::*;
use rstest::rstest;

use super::*;

const MAX: usize = 1000;

/// What a general reader makes of the same value.
fn oracle(json: &str) -> Option<Vec<u32>> {
    let text = serde_json::from_str::<String>(json);
    let list = text.as_deref().unwrap_or(json);
    // what has escapes cannot be passed on as it is
    let has_escapes = json.contains('\\');
    serde_json::from_str(list).ok().filter(|_| !has_escapes)
}

#[rstest]
#[case::array("[1,15043,29892]", &[1, 15043, 29892])]
#[case::string("\"[1,15043,29892]\"", &[1, 15043, 29892])]
#[case::spaces(" [ 1 ,\n2 ] ", &[1, 2])]
#[case::spaces_in_a_string("\" [ 1 , 2 ] \"", &[1, 2])]
#[case::empty("[]", &[])]
#[case::largest("[0,4294967295]", &[0, u32::MAX])]
fn a_list_is_read_as_an_array_or_a_string(#[case] json: &str, #[case] ids: &[u32]) {
    assert_eq!(parse_ids(json.as_bytes(), MAX).as_deref(), Ok(ids));
    let list = scan_ids(json.as_bytes(), MAX).unwrap();
    assert_eq!(list.count, ids.len());
    let text = json.get(list.text_at).unwrap();
    assert_eq!(serde_json::from_str::<Vec<u32>>(text).unwrap(), ids);
}

#[rstest]
#[case::float("[1.0]", IdsError::NoId(1))]
#[case::exponent("[1e2]", IdsError::NoId(1))]
#[case::sign("[-1]", IdsError::NoId(1))]
#[case::plus("[+1]", IdsError::NoId(1))]
#[case::leading_zero("[01]", IdsError::NoId(1))]
#[case::too_large("[4294967296]", IdsError::TooLarge(1))]
#[case::huge("[99999999999999999999999999999]", IdsError::TooLarge(1))]
#[case::text("[\"1\"]", IdsError::NoId(1))]
#[case::null("[null]", IdsError::NoId(1))]
#[case::trailing_comma("[1,]", IdsError::NoId(3))]
#[case::no_comma("[1 2]", IdsError::NoId(3))]
#[case::more_after_it("[1][2]", IdsError::NoId(3))]
#[case::cut_off("[1,2", IdsError::NoId(4))]
#[case::open_string("\"[1]", IdsError::NoId(4))]
#[case::nested("[[1]]", IdsError::NoId(1))]
#[case::object("{}", IdsError::NoList)]
#[case::number("1", IdsError::NoList)]
#[case::prose("\"hello\"", IdsError::NoList)]
#[case::nothing("", IdsError::NoList)]
fn anything_else_is_refused_with_its_place(#[case] json: &str, #[case] error: IdsError) {
    assert_eq!(scan_ids(json.as_bytes(), MAX), Err(error));
}

#[test]
fn a_list_that_is_too_long_is_refused_at_its_bound() {
    let ids = vec![7; MAX + 1];
    assert!(scan_ids(write_ids(&ids[1..]).as_bytes(), MAX).is_ok());
    let refused = scan_ids(write_ids(&ids).as_bytes(), MAX);
    assert_eq!(refused, Err(IdsError::TooMany(MAX)));
}

proptest! {
    #[test]
    fn what_is_written_reads_back(ids: Vec<u32>) {
        let text = write_ids(&ids);
        prop_assert_eq!(&serde_json::from_str::<Vec<u32>>(&text).unwrap(), &ids);
        prop_assert_eq!(parse_ids(text.as_bytes(), MAX).unwrap(), ids);
    }

    /// Texts of the characters that matter, so that many are almost lists.
    #[test]
    fn it_agrees_with_a_general_reader(
        json in prop_oneof![
            r#""?\[? ?([0-9]{1,2}|429496729[4-7]|-?[0-9]\.?e?)( ?, ?[0-9]{1,3}){0,3} ?\]?"?"#,
            r#"[\[\]0-9,. "\\n\t-]{0,12}"#,
        ],
    ) {
        let scanned = parse_ids(json.as_bytes(), MAX).ok();
        prop_assert_eq!(scanned, oracle(&json), "{:?}", json);
    }

    #[test]
    fn bytes_of_any_kind_end_in_an_answer(bytes: Vec<u8>) {
        let list = scan_ids(&bytes, MAX);
        prop_assert_eq!(list.map(|list| list.count), parse_ids(&bytes, MAX).map(|ids| ids.len()));
    }
}
