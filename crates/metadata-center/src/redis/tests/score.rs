//! The score in Redis is the score of the crate `scheduling`.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use redis::Script;
use scheduling::inference_lb::{self, Growth, LengthUnit, PrefillCharge, Row};

use super::*;

const ROWS: usize = 100_000;
const MOST_ROWS: usize = 250;

/// Answers with the score of each row, then with each before it is put between 0 and 1, then with what rows would be charged.
const CALLER: &str = r"
local params = {
  cache = tonumber(ARGV[1]), requests = tonumber(ARGV[2]), prefill = tonumber(ARGV[3]),
  growth = ARGV[4], floor = tonumber(ARGV[5]),
}
local chunks, length, least = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local rows, answer = {}, {}
for at = 9, #ARGV, 3 do
  rows[#rows + 1] = {
    requests = tonumber(ARGV[at]), prefill = tonumber(ARGV[at + 1]), matched = tonumber(ARGV[at + 2]),
  }
end
local scores, raws = score(params, rows, chunks)
for _, numbers in ipairs({ scores, raws }) do
  for _, it in ipairs(numbers) do
    answer[#answer + 1] = string.format('%.17g', it)
  end
end
for _, row in ipairs(rows) do
  answer[#answer + 1] = string.format('%.17g', prefill_charge('uncached', length, least, row.matched, chunks))
end
return answer
";

/// Small and large, with equal ones among them.
fn mk_number(rng: &mut impl Rng, most: i64) -> i64 {
    match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random_range(0..10.min(most)),
        2 => rng.random_range(0..1000.min(most)),
        _ => rng.random_range(0..most),
    }
}

fn mk_weight(rng: &mut impl Rng) -> f64 {
    match rng.random_range(0..5) {
        0 => 0.0,
        1 => f64::from(rng.random_range(0..10)),
        2 => 1e100,
        _ => rng.random_range(0.0..10.0),
    }
}

fn mk_row(rng: &mut impl Rng) -> Row {
    Row {
        reqs: mk_number(rng, 1 << 20),
        prompt: mk_number(rng, 1 << 50),
        matched: u32::try_from(mk_number(rng, 8192)).unwrap(),
    }
}

#[tokio::test]
async fn scores_and_charges_are_those_of_scheduling_to_the_last_bit() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    let script = Script::new(&format!("{}{CALLER}", include_str!("../score.lua")));
    let rng = &mut StdRng::seed_from_u64(13);
    let mut compared = 0;
    while compared < ROWS {
        let params = inference_lb::Params {
            cache_weight: mk_weight(rng),
            request_weight: mk_weight(rng),
            prefill_weight: mk_weight(rng),
            growth: [Growth::Linear, Growth::Ceil][rng.random_range(0..2)],
            prompt_floor: u64::try_from(mk_number(rng, 1 << 31)).unwrap(),
        };
        let chunks = u32::try_from(mk_number(rng, 8192)).unwrap();
        let length = mk_number(rng, 1 << 31);
        let least = [LengthUnit::Bytes, LengthUnit::Tokens][rng.random_range(0..2)].least_charge();
        let rows: Vec<_> = (0..rng.random_range(1..MOST_ROWS))
            .map(|_| mk_row(rng))
            .collect();
        let mut call = script.key("score");
        call.arg(params.cache_weight)
            .arg(params.request_weight)
            .arg(params.prefill_weight);
        call.arg(if params.growth == Growth::Ceil {
            "ceil"
        } else {
            "linear"
        });
        call.arg(params.prompt_floor)
            .arg(chunks)
            .arg(length)
            .arg(least);
        for row in &rows {
            call.arg(row.reqs).arg(row.prompt).arg(row.matched);
        }
        let answer: Vec<f64> = engine.shared.link.invoke(&call).await.unwrap();
        let expected = inference_lb::score(&params, &rows, chunks);
        let length = u64::try_from(length).unwrap();
        let charge = |row: &Row| PrefillCharge::Uncached.of(length, least, row.matched, chunks);
        let charges = rows.iter().map(|it| charge(it) as f64);
        let scores = expected.normal.iter().chain(&expected.raw).copied();
        let expected: Vec<_> = scores.chain(charges).collect();
        assert_eq!(answer, expected, "{params:?} {chunks} {length} {rows:?}");
        compared += rows.len();
    }
}
