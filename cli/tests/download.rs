//! A hub id that is nowhere here is fetched, from a hub on the loopback address; then the local copy serves.
#![cfg(feature = "download")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/st-tiny")
}

/// Every file below the folder, as paths relative to it.
fn files(folder: &Path, below: &str) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder.join(below)).unwrap().flatten() {
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        match entry.path().is_dir() {
            true => all.extend(files(folder, &format!("{name}/"))),
            false => all.push(name),
        }
    }
    all
}

/// Answers one request as the hub does: the list of files, or a range of one file.
fn serve(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|l| !l.is_empty()).map(|l| l.to_ascii_lowercase()).collect();
    let path = request.split(' ').nth(1).unwrap_or_default().to_string();
    if path.starts_with("/api/models/team/tiny") {
        let siblings: Vec<_> = files(&model(), "").into_iter().map(|f| serde_json::json!({ "rfilename": f })).collect();
        let body = serde_json::json!({ "siblings": siblings, "sha": "c0ffee" }).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        return;
    }
    let Some(bytes) = path.strip_prefix("/team/tiny/resolve/main/").and_then(|f| std::fs::read(model().join(f)).ok())
    else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let range = headers.iter().find_map(|h| h.strip_prefix("range: bytes=")).unwrap().to_string();
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(bytes.len(), |e: usize| (e + 1).min(bytes.len()));
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\
         ETag: \"{}\"\r\nx-repo-commit: c0ffee\r\nConnection: close\r\n\r\n",
        end - start,
        end.saturating_sub(1),
        bytes.len(),
        path.replace('/', "-")
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&bytes[start..end]);
}

fn embed(cache: &Path, model: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kin-infer"));
    command.args(["embed", "--quiet", "--model", model, "some text"]).env("HF_HUB_CACHE", cache);
    command.env_remove("HF_HUB_OFFLINE").envs(environment.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_hub_id_is_fetched_once() {
    let cache = std::env::temp_dir().join(format!("kin-infer-hub-{}", std::process::id()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    let here = [("HF_ENDPOINT", endpoint.as_str())];

    let offline = embed(&cache, "team/tiny", &[here[0], ("HF_HUB_OFFLINE", "1")]);
    assert_eq!(offline.status.code(), Some(1), "nothing is fetched when that is forbidden");

    let expected = embed(&cache, model().to_str().unwrap(), &[]);
    let fetched = embed(&cache, "team/tiny", &here);
    assert_eq!(fetched.status.code(), Some(0), "{}", String::from_utf8_lossy(&fetched.stderr));
    assert_eq!(fetched.stdout, expected.stdout);

    let again = embed(&cache, "team/tiny", &[("HF_ENDPOINT", "http://127.0.0.1:1"), ("HF_HUB_OFFLINE", "1")]);
    assert_eq!(again.stdout, expected.stdout, "the local copy serves without a hub");

    let absent = embed(&cache, "team/none", &here);
    let _ = std::fs::remove_dir_all(&cache);
    assert_eq!(absent.status.code(), Some(1));
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(said.contains("team/none") && said.contains("404"), "{said}");
}
