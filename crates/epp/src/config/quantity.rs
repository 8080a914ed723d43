//! Quantities as Kubernetes writes them.

/// Reads `500M`, `1Gi`, `1.5k`, `2e3` or `500m`; parts of one are rounded up, as Kubernetes does for whole amounts. None:
/// it is no quantity, negative, or too large.
pub(super) fn parse(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = factor(suffix)?;
    let denominator = u32::try_from(fraction.len())
        .ok()
        .and_then(|places| 10_u128.checked_pow(places))
        .and_then(|tens| tens.checked_mul(denominator))?;
    let amount = digits.checked_mul(numerator)?.div_ceil(denominator);
    u64::try_from(amount).ok()
}

/// What a suffix multiplies by, as a fraction.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |exponent: u32| Some((10_u128.pow(exponent), 1));
    let binary = |exponent: u32| Some((1_u128 << exponent, 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        exponent => {
            let exponent: i8 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let tens = 10_u128.checked_pow(exponent.unsigned_abs().into())?;
            Some(if exponent < 0 { (1, tens) } else { (tens, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(0))]
    #[case("128", Some(128))]
    #[case("1k", Some(1000))]
    #[case("500M", Some(500_000_000))]
    #[case("1Gi", Some(1 << 30))]
    #[case("1.5Ki", Some(1536))]
    #[case("2e3", Some(2000))]
    #[case("2E3", Some(2000))]
    #[case("1E", Some(1_000_000_000_000_000_000))]
    #[case("500m", Some(1))]
    #[case("1500m", Some(2))]
    #[case("1500e-3", Some(2))]
    #[case(".5k", Some(500))]
    #[case("5.", Some(5))]
    #[case("", None)]
    #[case(".", None)]
    #[case("Gi", None)]
    #[case("1GB", None)]
    #[case("1K", None)]
    #[case("1 Gi", None)]
    #[case("-1", None)]
    #[case("1.2.3", None)]
    #[case("NaN", None)]
    #[case("99999999999999999999999999999999999999999", None)]
    #[case("99Ei", None)]
    #[case("1e99", None)]
    fn quantities_are_read_as_kubernetes_does(#[case] text: &str, #[case] want: Option<u64>) {
        assert_eq!(parse(text), want, "{text:?}");
    }
}
