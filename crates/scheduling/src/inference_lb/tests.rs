use proptest::{collection::vec, prelude::*};
use rstest::rstest;

use super::*;

fn row(reqs: i64, prompt: i64, matched: u32) -> Row {
    Row {
        reqs,
        prompt,
        matched,
    }
}

fn assert_near(got: &[f64], want: &[f64]) {
    let near = |(got, want): (&f64, &f64)| (got - want).abs() < 5e-6;
    let all = got.len() == want.len() && got.iter().zip(want).all(near);
    assert!(all, "got {got:?}, want {want:?}");
}

#[rstest]
#[case(Growth::Linear, 1.2, &[-4.2, 0.583_333, -1.433_333], &[0.0, 0.771_505, 0.446_237])]
#[case(Growth::Ceil, 2.0, &[-5.0, 0.583_333, -1.833_333], &[0.0, 0.797_619, 0.452_381])]
fn the_worked_example_has_its_scores(
    #[case] growth: Growth,
    #[case] w2e: f64,
    #[case] raw: &[f64],
    #[case] normal: &[f64],
) {
    let params = Params {
        growth,
        ..Params::default()
    };
    let rows = [row(8, 4096, 0), row(2, 1024, 2), row(5, 2048, 1)];
    let scores = score(&params, &rows, 3);
    assert_near(&scores.raw, raw);
    assert_near(&scores.normal, normal);
    assert_near(&[scores.w2e], &[w2e]);
}

#[rstest]
#[case::nobody(&[], 0, &[])]
#[case::idle(&[row(0, 0, 0), row(0, 0, 0)], 4, &[0.0, 0.0])]
#[case::one_host(&[row(9, 4096, 2)], 4, &[-2.0])]
#[case::one_request_is_half_of_the_worst(&[row(1, 0, 0), row(0, 0, 0)], 0, &[-0.5, 0.0])]
#[case::weight_once_at_delta_5(&[row(5, 0, 0), row(0, 0, 0)], 0, &[-1.0, 0.0])]
#[case::floor(&[row(0, 512, 0), row(0, 0, 0)], 0, &[-1.5, 0.0])]
#[case::more_matches_than_chunks(&[row(0, 0, 5), row(0, 0, 2)], 2, &[2.0, 2.0])]
#[case::no_chunks(&[row(0, 0, 5), row(0, 0, 0)], 0, &[0.0, 0.0])]
#[case::below_zero(&[row(0, -9, 0), row(-2, 0, 0)], 0, &[-1.0, 0.0])]
fn corner_cases_score(#[case] rows: &[Row], #[case] chunks: u32, #[case] want: &[f64]) {
    for growth in [Growth::Linear, Growth::Ceil] {
        let params = Params {
            growth,
            ..Params::default()
        };
        assert_near(&score(&params, rows, chunks).raw, want);
    }
}

#[test]
fn zero_weights_make_all_equal() {
    let params = Params {
        cache_weight: 0.0,
        request_weight: 0.0,
        prefill_weight: 0.0,
        prompt_floor: 0,
        ..Params::default()
    };
    let scores = score(&params, &[row(8, 4096, 0), row(2, 0, 3)], 3);
    assert_near(&scores.raw, &[0.0, 0.0]);
    assert_near(&scores.normal, &[0.0, 0.0]);
}

#[rstest]
#[case::part(LengthUnit::Bytes, 1000, 1, 3, 667)]
#[case::hit(LengthUnit::Bytes, 4096, 3, 3, 512)]
#[case::short_hit(LengthUnit::Bytes, 100, 1, 1, 100)]
#[case::blind(LengthUnit::Bytes, 4096, 0, 0, 4096)]
#[case::miss(LengthUnit::Bytes, 4096, 0, 8, 4096)]
#[case::part_in_tokens(LengthUnit::Tokens, 1000, 7, 8, 128)]
#[case::hit_in_tokens(LengthUnit::Tokens, 4096, 3, 3, 128)]
#[case::short_hit_in_tokens(LengthUnit::Tokens, 100, 1, 1, 100)]
fn what_is_cached_is_not_charged(
    #[case] unit: LengthUnit,
    #[case] length: u64,
    #[case] matched: u32,
    #[case] chunks: u32,
    #[case] want: u64,
) {
    assert_eq!(
        PrefillCharge::Uncached.of(length, unit.least_charge(), matched, chunks),
        want
    );
    assert_eq!(
        PrefillCharge::Full.of(length, unit.least_charge(), matched, chunks),
        length
    );
}

fn arb_weight() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..10.0,
        1 => Just(0.0),
        1 => proptest::num::f64::ANY,
    ]
}

fn arb_row() -> impl Strategy<Value = Row> {
    let number = || prop_oneof![4 => 0..100_i64, 1 => any::<i64>()];
    (number(), number(), 0..12_u32).prop_map(|(reqs, prompt, matched)| row(reqs, prompt, matched))
}

proptest! {
    #[test]
    fn normal_is_between_0_and_1_in_the_order_of_raw(
        weights in (arb_weight(), arb_weight(), arb_weight()),
        ceil in any::<bool>(),
        prompt_floor in prop_oneof![Just(0), any::<u64>()],
        rows in vec(arb_row(), 0..12),
        chunks in 0..10_u32,
    ) {
        let params = Params {
            cache_weight: weights.0,
            request_weight: weights.1,
            prefill_weight: weights.2,
            growth: if ceil { Growth::Ceil } else { Growth::Linear },
            prompt_floor,
        };
        let scores = score(&params, &rows, chunks);
        prop_assert_eq!(scores.raw.len(), rows.len());
        prop_assert_eq!(scores.normal.len(), rows.len());
        let places = scores.raw.iter().zip(&scores.normal);
        for (raw, normal) in places.clone() {
            prop_assert!(raw.is_finite());
            prop_assert!((0.0..=1.0).contains(normal), "{}", normal);
            for (other, its) in places.clone() {
                prop_assert!(raw >= other || normal <= its, "{} {}: {} {}", raw, other, normal, its);
            }
        }
    }
}
