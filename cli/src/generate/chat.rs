//! A conversation on stdin and stdout.

use std::io::{BufRead, IsTerminal, Write, stdin};

use kin_infer::generate::{ChatOptions, Messages};

use super::record::{Sequences, Timing};
use super::session::Session;
use super::{Args, Format, Interrupt, interrupt};
use crate::failure::{Done, Failure, Result};
use crate::output::Sink;

/// Reads messages until the end of stdin. What the cache holds of the conversation is not computed again.
pub fn run(args: &Args, session: &Session, interrupt: &Interrupt) -> Result<Done> {
    let generator = session.text()?;
    let asks = stdin().is_terminal() && !args.compute.quiet;
    let mut cache = session.model().kv_cache()?;
    let mut messages = Messages::new();
    let (mut made, mut failed) = (0, 0);
    for line in 1.. {
        let Some(text) = read_line(asks, line)? else { break };
        if text.trim().is_empty() {
            continue;
        }
        messages.push("user", &text);
        let prompt = generator.chat_prompt(&messages, &ChatOptions::new())?;
        let (mut timing, mut out, mut begun) = (Timing::default(), Sink::stdout(), false);
        interrupt.begin();
        let record = session.stream(&mut cache, &prompt, &mut timing, |piece| {
            begun = true;
            match args.format {
                Format::Text => out.put(piece.as_bytes()).and_then(|()| out.flush()),
                Format::Json => Ok(()),
            }
        });
        interrupt.end();
        let record = match record {
            // Too long, perhaps: the conversation goes on without this message.
            Err(Failure::Failed(why)) if !begun && !interrupt.cancelled() => {
                crate::talk::tell(&format!("error: message {line}: {why}; the conversation goes on without it"));
                messages.pop();
                failed += 1;
                continue;
            }
            record => record?,
        };
        made += record.tokens.len();
        messages.push("assistant", record.text.as_deref().unwrap_or_default());
        match args.format {
            Format::Text => out.line("")?,
            Format::Json => out.json(&Sequences::new(&[Ok(record)]))?,
        }
        out.commit()?;
        timing.tell(&args.compute);
        if interrupt.cancelled() && !stdin().is_terminal() {
            break;
        }
    }
    if interrupt.cancelled() && made == 0 {
        std::process::exit(interrupt::STATUS.into());
    }
    Ok(Done::with_failures(failed))
}

/// The next line of stdin without its end; `None` at the end of stdin.
fn read_line(asks: bool, number: usize) -> Result<Option<String>> {
    if asks {
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "> ").and_then(|()| stderr.flush());
    }
    let mut bytes = Vec::new();
    let read = stdin().lock().read_until(b'\n', &mut bytes);
    if read.map_err(|e| Failure::Failed(format!("stdin: {e}")))? == 0 {
        return Ok(None);
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Failure::Failed(format!("stdin: line {number} is not UTF-8")))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
}
