//! Buckets of what has no labels of requests.

use histogram::Shape;

/// 10 us to 100 ms: the goal is 100 us at the median and 500 us at the 99th percentile.
pub(super) static PICKS: Shape = Shape::nanos(&[
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
]);

/// 0.1 to 100 ms, as the reference has them.
pub(super) static SCHEDULING: Shape = Shape::nanos(&[
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
]);

/// 0.5 ms to 10 s: the body's transfer and the queue count too. As the reference has them.
pub(super) static REQUEST_PROCESSING: Shape = Shape::micros(&[
    500, 1_000, 2_000, 5_000, 10_000, 15_000, 25_000, 40_000, 60_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
]);

/// 0.1 ms to 5 s, as the reference has them.
pub(super) static RESPONSE_PROCESSING: Shape = Shape::micros(&[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
]);

/// As the reference has them, in thousandths.
pub(super) static HIT_RATIOS: Shape =
    Shape::thousandths(&[0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);

/// As the reference has them.
pub(super) static HIT_BYTES: Shape = Shape::units(&[
    0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
]);
