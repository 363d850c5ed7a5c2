import pytest

from pipeline.report.money import money_text, times_text


@pytest.mark.parametrize(
    ("amount_nano", "currency", "expected"),
    [
        (0, "USD", "$0.00"),
        (1, "USD", "$0.000000001"),
        (123_000, "USD", "$0.000123"),
        (100_000_000, "EUR", "€0.10"),
        (123_456, "USD", "$0.000123"),
        (12_345_678, "USD", "$0.0123"),
        (1_234_567, "USD", "$0.00123"),
        (999_999_999, "USD", "$1.00"),
        (1_005_000_000, "USD", "$1.01"),
        (1_234_567_891_234_567_891, "USD", "$1,234,567,891.23"),
        (123_000, "CHF", "CHF 0.000123"),
        (-5_000_000_000, "USD", "−$5.00"),
    ],
)
def test_money_has_two_decimals_or_three_significant_digits(amount_nano: int, currency: str, expected: str) -> None:
    assert money_text(amount_nano, currency) == expected


@pytest.mark.parametrize(
    ("dividend", "divisor", "expected"),
    [
        (123_456, 1, "123,000×"),
        (1_234, 1, "1,230×"),
        (456, 10, "45.6×"),
        (9_999, 1_000, "10.0×"),
        (120, 100, "1.20×"),
        (1, 55, "0.018×"),
    ],
)
def test_a_ratio_has_three_significant_digits(dividend: int, divisor: int, expected: str) -> None:
    assert times_text(dividend, divisor) == expected
