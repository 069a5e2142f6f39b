//! How hashes are written.

use std::fmt::Write;

/// Bytes in hexadecimal digits, two a byte, lower case: how every hash here is written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // A String takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_digits_a_byte() {
        assert_eq!(super::hex(&[0, 0x0a, 0xff]), "000aff");
        assert_eq!(super::hex(&[]), "");
    }
}
