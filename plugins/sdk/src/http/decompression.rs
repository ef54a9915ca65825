//! Compressed request bodies.

use std::io::Read;

use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use super::request::too_large;
use crate::Error;

/// Decompresses a body with these values of `Content-Encoding`: at most one of `gzip` and `deflate`. An
/// error with status 413 if it then has more than `limit` bytes.
pub(super) fn decompress(
    encodings: &[&str],
    body: Vec<u8>,
    limit: usize,
) -> Result<Vec<u8>, Error> {
    let names = encodings.iter().flat_map(|names| names.split(','));
    let names = names.map(|name| name.trim().to_ascii_lowercase());
    let names: Vec<_> = names
        .filter(|name| !name.is_empty() && name != "identity")
        .collect();
    let body = body.as_slice();
    match names.join(", ").as_str() {
        "" => Ok(body.to_vec()),
        "gzip" | "x-gzip" => read(MultiGzDecoder::new(body), "gzip", limit),
        // The name stands for zlib's format, but some clients send the stream in it alone.
        "deflate" if has_zlib_header(body) => read(ZlibDecoder::new(body), "deflate", limit),
        "deflate" => {
            let mut decoder = DeflateDecoder::new(body);
            let text = read(&mut decoder, "deflate", limit)?;
            // Other bytes can look like a short stream.
            match decoder.total_in() == body.len() as u64 {
                true => Ok(text),
                false => Err(invalid("deflate", "bytes follow its end")),
            }
        }
        others => {
            let detail = format!(
                "the body has the content encoding {others:?}; expected gzip, deflate or none"
            );
            Err(Error::new(415, "unsupported-encoding", detail))
        }
    }
}

fn has_zlib_header(body: &[u8]) -> bool {
    match body {
        [method, flags, ..] => {
            method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
        }
        _ => false,
    }
}

fn read(mut decoder: impl Read, name: &str, limit: usize) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    // One byte more shows that there is more.
    let result = decoder
        .by_ref()
        .take(limit as u64 + 1)
        .read_to_end(&mut text);
    result.map_err(|error| invalid(name, &error.to_string()))?;
    match text.len() <= limit {
        true => Ok(text),
        false => Err(too_large(limit)),
    }
}

fn invalid(name: &str, why: &str) -> Error {
    let text = format!("the body is not {name}, as `Content-Encoding` says: {why}");
    Error::bad_request("invalid-encoding", text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::testing::block_on;
    use flate2::Compression;
    use flate2::bufread::{DeflateEncoder, GzEncoder, ZlibEncoder};

    const TEXT: &[u8] = b"{\"prompt\": \"12+7=\"}";

    fn all(mut reader: impl Read) -> Vec<u8> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        all(GzEncoder::new(text, Compression::fast()))
    }

    #[test]
    fn body_is_decompressed() {
        let zlib = all(ZlibEncoder::new(TEXT, Compression::fast()));
        let raw = all(DeflateEncoder::new(TEXT, Compression::fast()));
        let halves = [gzip(&TEXT[..7]), gzip(&TEXT[7..])].concat();
        for (encodings, body) in [
            (&[][..], TEXT.to_vec()),
            (&["identity"], TEXT.to_vec()),
            (&["gzip"], gzip(TEXT)),
            (&["X-GZIP", "identity"], gzip(TEXT)),
            (&["gzip"], halves),
            (&["deflate"], zlib),
            (&["deflate"], raw),
        ] {
            let mut request = Request::post("/").with_body(body);
            for encoding in encodings {
                request = request.with_header("Content-Encoding", encoding);
            }
            let text = block_on(request.decompressed_body());
            assert_eq!(text.as_deref(), Ok(TEXT), "{encodings:?}");
        }
    }

    #[test]
    fn limit_holds_for_the_decompressed_body() {
        let bomb = gzip(&vec![0; 1 << 20]);
        let exact = decompress(&["gzip"], bomb.clone(), 1 << 20).unwrap();
        assert_eq!(exact.len(), 1 << 20);
        let error = decompress(&["gzip"], bomb, (1 << 20) - 1).unwrap_err();
        assert_eq!((error.status(), error.code()), (413, "request-too-large"));
    }

    #[test]
    fn other_bodies_are_rejected() {
        let cut = gzip(TEXT)[..20].to_vec();
        for (encodings, body, status, code) in [
            (&["br"][..], TEXT.to_vec(), 415, "unsupported-encoding"),
            (
                &["gzip, gzip"],
                gzip(&gzip(TEXT)),
                415,
                "unsupported-encoding",
            ),
            (&["gzip", "br"], gzip(TEXT), 415, "unsupported-encoding"),
            (&["gzip"], TEXT.to_vec(), 400, "invalid-encoding"),
            (&["gzip"], cut, 400, "invalid-encoding"),
            (&["deflate"], b"\xff\xff".to_vec(), 400, "invalid-encoding"),
            (&["deflate"], TEXT.to_vec(), 400, "invalid-encoding"),
            (
                &["deflate"],
                b"{\"messages\": []}".to_vec(),
                400,
                "invalid-encoding",
            ),
        ] {
            let error = decompress(encodings, body, 1000).unwrap_err();
            assert_eq!(error.status(), status, "{encodings:?}");
            assert_eq!(error.code(), code, "{encodings:?}");
        }
    }
}
