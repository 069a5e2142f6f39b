//! The template engine, set up as transformers sets up Jinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{clock, python};

/// Instructions, and pieces of 64 bytes, that one rendering may use: templates come from strangers.
const FUEL: u64 = 50_000_000;

/// The environment in which `seconds` since 1970 are now.
pub(super) fn new(seconds: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| {
        clock::format(seconds, &format).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))
    });
    environment.add_filter("tojson", to_json);
    environment
}

/// `json.dumps` with transformers' defaults: tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false).
fn to_json(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let given = |i: usize, name: &str| -> Result<Option<Value>, Error> {
        let found: Option<Value> = named.get(name)?;
        Ok(positional.get(i).cloned().or(found).filter(|v| !v.is_none()))
    };
    let flag = |i, name| Ok::<_, Error>(given(i, name)?.is_some_and(|v| v.is_true()));
    let indent = match given(1, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        Some(number) => Some(" ".repeat(number.as_usize().unwrap_or(0).min(64))),
    };
    let default = |i: usize| {
        if i == 1 {
            ": "
        } else if indent.is_some() {
            ","
        } else {
            ", "
        }
        .to_string()
    };
    let separators = match given(2, "separators")? {
        None => [default(0), default(1)],
        Some(pair) => {
            let text = |i| Ok::<_, Error>(pair.get_item_by_index(i)?.as_str().unwrap_or_default().to_string());
            [text(0)?, text(1)?]
        }
    };
    let layout = python::Layout { ascii: flag(0, "ensure_ascii")?, sorted: flag(3, "sort_keys")?, indent, separators };
    named.assert_all_used()?;
    layout.dump(value).map(Value::from)
}

/// The template without `{% generation %}` blocks, which only mark what an assistant said: their content stays, as
/// that of a condition that always holds.
pub(super) fn plain(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        result.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[..end];
        let name = inner.trim_matches(['-', '+', ' ', '\t', '\n', '\r']);
        let plain = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        result.push_str(&inner.replacen(name, plain, 1));
        rest = &tag[end..];
    }
    result + rest
}
