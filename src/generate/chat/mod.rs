//! Conversations to prompts: the chat templates of a model's folder.

mod clock;
mod environment;
mod python;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::error::{InferError, Result};
use crate::modules::json::{JsonFile, Settings};

/// A conversation, message after message.
///
/// ```
/// let mut messages = kin_infer::generate::Messages::new();
/// messages.push("user", "Where does the program start?");
/// assert_eq!(messages.len(), 1);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Messages(Vec<Value>);

impl Messages {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message: `role` is `system`, `user`, `assistant`, or what else the template knows.
    pub fn push(&mut self, role: &str, content: &str) {
        self.0.push(Value::from_pairs([("role", Value::from(role)), ("content", Value::from(content))]));
    }

    /// A JSON list of objects, such as `[{"role": "user", "content": "..."}]`. The template sees every key, in its
    /// order; keys set to null are left out, and `reasoning_content`, `thinking` and `reasoning` stand for each other,
    /// as in transformers.
    ///
    /// # Errors
    /// [`InvalidArgument`](InferError::InvalidArgument) where the text is not such a list.
    pub fn from_json(text: &str) -> Result<Self> {
        let list: Vec<Value> = parse("messages", text)?;
        list.iter().enumerate().map(|(i, message)| normalised(i, message)).collect::<Result<_>>().map(Self)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes back the last message.
    pub fn pop(&mut self) {
        self.0.pop();
    }
}

/// The keys that hold the reasoning of a message; the first is what templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

fn normalised(i: usize, message: &Value) -> Result<Value> {
    let wrong = |e: &dyn std::fmt::Display| InferError::input(i, format!("the message is not an object: {e}"));
    if message.kind() != ValueKind::Map {
        return Err(wrong(&message.kind()));
    }
    let mut pairs = Vec::new();
    for key in message.try_iter().map_err(|e| wrong(&e))? {
        let value = message.get_item(&key).map_err(|e| wrong(&e))?;
        if !value.is_none() {
            pairs.push((key, value));
        }
    }
    let of = |name: &str| pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone());
    if let Some(reasoning) = REASONING.into_iter().find_map(of) {
        pairs.retain(|(key, _)| key.as_str() != Some(REASONING[0]));
        if !pairs.iter().any(|(key, _)| key.as_str() == Some(REASONING[1])) {
            pairs.insert(0, (REASONING[1].into(), reasoning.clone()));
        }
        pairs.push((REASONING[0].into(), reasoning));
    }
    Ok(Value::from_pairs(pairs))
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| InferError::InvalidArgument(format!("{what}: {e}")))
}

/// How a conversation is written.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    template: Option<String>,
    answer: bool,
    now: Option<u64>,
    variables: Vec<(String, Value)>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { template: None, answer: true, now: None, variables: Vec::new() }
    }
}

impl ChatOptions {
    /// The folder's default template, the prompt ending where the model is to answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The folder's template of this name.
    pub fn template(mut self, name: &str) -> Self {
        self.template = Some(name.to_string());
        self
    }

    /// Whether the prompt ends with what makes the model answer (`add_generation_prompt`).
    pub fn answer(mut self, answer: bool) -> Self {
        self.answer = answer;
        self
    }

    /// Seconds since 1970 that count as now in `strftime_now`, in UTC; without it, the clock's.
    pub fn now(mut self, seconds: u64) -> Self {
        self.now = Some(seconds);
        self
    }

    /// A variable of the template, its value as JSON: `tools`, `documents`, `enable_thinking`, ...
    ///
    /// # Errors
    /// [`InvalidArgument`](InferError::InvalidArgument) where the value is not JSON.
    pub fn variable(mut self, name: &str, json: &str) -> Result<Self> {
        self.variables.push((name.to_string(), parse(name, json)?));
        Ok(self)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.variables.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// The chat templates of a folder.
///
/// Read from `chat_template.jinja` and `additional_chat_templates/NAME.jinja`, else from `chat_template` of
/// `tokenizer_config.json`: a text, or a list of named ones. A template sees what transformers'
/// `apply_chat_template` gives it: `messages`, `add_generation_prompt`, `tools`, `documents`, the special tokens
/// (`bos_token`, `eos_token`, ...), the functions `raise_exception` and `strftime_now`, Python's methods of texts, lists
/// and dictionaries, loop controls; whitespace around blocks is trimmed as there.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    file: PathBuf,
    /// Name and source; the first one named `default`, or the only one, is used where no name is given.
    sources: Vec<(String, String)>,
    special: Vec<(String, String)>,
}

/// The special tokens that a template sees, by the keys of `tokenizer_config.json`.
const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatTemplate {
    /// The templates of a folder, or of the GGUF file that the argument stands for, if it has any.
    ///
    /// # Errors
    /// A file that cannot be read, or a `chat_template` that is neither a text nor a list of named ones.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        Self::of(&Settings::open(folder)?)
    }

    /// The same for settings that are open.
    pub(super) fn of(settings: &Settings) -> Result<Option<Self>> {
        let folder = &settings.place;
        let config = settings.read("tokenizer_config.json")?;
        let map = settings.read("special_tokens_map.json")?;
        let (own, more) = (folder.join("chat_template.jinja"), folder.join("additional_chat_templates"));
        let (file, sources) = if own.is_file() {
            let mut sources = vec![("default".to_string(), read(&own)?)];
            sources.extend(named_files(&more)?);
            (own, sources)
        } else {
            (config.file.clone(), configured(&config)?)
        };
        if sources.is_empty() {
            return Ok(None);
        }
        let text =
            |value: &serde_json::Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string);
        let token = |key: &str| [&config, &map].into_iter().find_map(|file| text(file.get(key)?));
        let special = SPECIAL.into_iter().filter_map(|key| Some((key.to_string(), token(key)?))).collect();
        Ok(Some(Self { file, sources, special }))
    }

    /// Names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    /// A conversation as the prompt's text, special tokens included.
    ///
    /// # Errors
    /// No messages; a name the folder does not have; a template that is malformed, or that refuses the conversation
    /// (`raise_exception`): with its message.
    pub fn render(&self, messages: &Messages, options: &ChatOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(InferError::InvalidArgument("a conversation without messages has no prompt".to_string()));
        }
        let source = self.source(options)?;
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let environment = environment::new(options.now.unwrap_or_else(clock));
        let mut context: Vec<(String, Value)> = vec![
            ("messages".to_string(), Value::from(messages.0.clone())),
            ("tools".to_string(), Value::from(())),
            ("documents".to_string(), Value::from(())),
            ("add_generation_prompt".to_string(), Value::from(options.answer)),
        ];
        context.extend(self.special.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))));
        context.extend(options.variables.iter().cloned());
        let rendered = environment.render_str(&environment::plain(source), Value::from_pairs(context));
        rendered.map_err(|e| {
            let line = e.line().map_or(String::new(), |line| format!(", line {line}"));
            let detail = e.detail().map_or_else(|| e.kind().to_string(), str::to_string);
            InferError::model(&self.file, format!("chat template{line}: {detail}"))
        })
    }

    fn source(&self, options: &ChatOptions) -> Result<&str> {
        let by_name = |name: &str| self.sources.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str());
        let found = match &options.template {
            Some(name) => by_name(name),
            None => {
                let tools = options.value("tools").is_some_and(|tools| !tools.is_none());
                let only = || (self.sources.len() == 1).then(|| self.sources[0].1.as_str());
                tools.then(|| by_name("tool_use")).flatten().or_else(|| by_name("default")).or_else(only)
            }
        };
        found.ok_or_else(|| {
            let wanted = options.template.as_deref().unwrap_or("default");
            let known: Vec<&str> = self.names().collect();
            InferError::InvalidArgument(format!("no chat template `{wanted}`; the folder has {}", known.join(", ")))
        })
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| InferError::io(file, e))
}

/// `chat_template` of the configuration.
fn configured(config: &JsonFile) -> Result<Vec<(String, String)>> {
    let Some(value) = config.get("chat_template") else { return Ok(Vec::new()) };
    if let Some(source) = value.as_str() {
        return Ok(vec![("default".to_string(), source.to_string())]);
    }
    let named = |entry: &serde_json::Value| {
        let text = |key: &str| entry.get(key)?.as_str().map(str::to_string);
        text("name").zip(text("template"))
    };
    let list = value.as_array().and_then(|list| list.iter().map(named).collect::<Option<Vec<_>>>());
    list.ok_or_else(|| config.error("`chat_template` is neither a text nor a list of {\"name\", \"template\"}"))
}

/// The templates of a folder of them, by name.
fn named_files(folder: &Path) -> Result<Vec<(String, String)>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).map_err(|e| InferError::io(folder, e))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "jinja"));
    files.sort();
    let named = |file: PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, read(&file)?))
    };
    files.into_iter().map(named).collect()
}
