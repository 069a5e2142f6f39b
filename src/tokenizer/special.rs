//! The special and added tokens of a folder, as `transformers` reads them: `added_tokens_decoder` of
//! tokenizer_config.json, or else special_tokens_map.json and added_tokens.json beside it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::failure;
use super::family::Family;
use crate::error::Result;
use crate::modules::json::JsonFile;

/// What a special token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Bos,
    Eos,
    Unk,
    Sep,
    Pad,
    Cls,
    Mask,
}

/// In the order in which new ids are given.
const ROLES: [(Role, &str); 7] = [
    (Role::Bos, "bos_token"),
    (Role::Eos, "eos_token"),
    (Role::Unk, "unk_token"),
    (Role::Sep, "sep_token"),
    (Role::Pad, "pad_token"),
    (Role::Cls, "cls_token"),
    (Role::Mask, "mask_token"),
];

/// The special and added tokens that a folder's configuration names.
pub(super) struct Specials {
    roles: [Option<AddedToken>; 7],
    by_id: BTreeMap<u32, AddedToken>,
    extra: Vec<AddedToken>,
    /// The file of `by_id`, for messages.
    file: PathBuf,
}

impl Specials {
    /// Reads the files beside `config`, which is tokenizer_config.json.
    pub(super) fn read(folder: &Path, config: &JsonFile, family: &Family) -> Result<Self> {
        let map = JsonFile::optional(folder.join("special_tokens_map.json"))?;
        let plain = JsonFile::optional(folder.join("added_tokens.json"))?;
        let whole = config.get("added_tokens_decoder").is_some();
        let places: &[&JsonFile] = if whole { &[config] } else { &[&map, config] };
        let roles = read_roles(places, family)?;
        let extra = extra(places)?;
        let by_id = if whole { decoder(config)? } else { BTreeMap::new() };
        let file = if whole { &config.file } else { &plain.file }.clone();
        let mut specials = Self { roles, by_id, extra, file };
        if !whole {
            specials.read_plain(&plain)?;
        }
        for role in specials.roles.iter_mut().flatten() {
            if let Some(token) = specials.by_id.values().find(|token| token.content == role.content) {
                *role = AddedToken { special: true, ..token.clone() };
            }
        }
        Ok(specials)
    }

    /// added_tokens.json: ids by content; a token is special where another file calls it so.
    fn read_plain(&mut self, plain: &JsonFile) -> Result<()> {
        for (content, id) in &plain.map {
            let parsed = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = parsed.ok_or_else(|| plain.wrong(content, "a token id", id))?;
            let mut special = self.roles.iter().flatten().chain(&self.extra);
            let special = special.any(|token| token.content == *content);
            if self.by_id.insert(id, AddedToken::from(content.clone(), special)).is_some() {
                return Err(failure(&plain.file, format!("two tokens have the id {id}")));
            }
        }
        Ok(())
    }

    /// The token of a role.
    pub(super) fn role(&self, role: Role) -> Option<&str> {
        self.roles[role as usize].as_ref().map(|token| token.content.as_str())
    }

    /// Whether a role's token has an id, in the vocabulary or in the configuration.
    pub(super) fn known(&self, role: Role, inner: &Tokenizer) -> bool {
        let given = |name: &str| self.by_id.values().any(|token| token.content == name);
        self.role(role).is_some_and(|name| inner.token_to_id(name).is_some() || given(name))
    }

    /// Registers the tokens of the model's own file, then those of the configuration, which win. Each of the latter
    /// must get the id the configuration gives it. A role's token that is nowhere else gets the next free id, unless
    /// `closed` says that the vocabulary takes none.
    pub(super) fn register(&self, inner: &mut Tokenizer, own: Vec<AddedToken>, closed: bool) -> Result<()> {
        let mut tokens: Vec<AddedToken> = Vec::new();
        let mut places = HashMap::new();
        for token in own.iter().chain(self.by_id.values()) {
            let place = *places.entry(token.content.as_str()).or_insert(tokens.len());
            match tokens.get_mut(place) {
                Some(known) => *known = token.clone(),
                None => tokens.push(token.clone()),
            }
        }
        let roles = self.roles.iter().flatten().filter(|token| !closed || inner.token_to_id(&token.content).is_some());
        for token in roles.chain(&self.extra) {
            if let Entry::Vacant(place) = places.entry(token.content.as_str()) {
                place.insert(tokens.len());
                tokens.push(token.clone());
            }
        }
        inner.add_tokens(&tokens);
        for (id, token) in &self.by_id {
            if inner.token_to_id(&token.content) != Some(*id) {
                let content = &token.content;
                let detail = format!("the added token `{content}` has id {id}, which does not follow the vocabulary");
                return Err(failure(&self.file, detail));
            }
        }
        Ok(())
    }
}

/// The token of each role from the first file that names it, else the family's; null means that there is none.
fn read_roles(places: &[&JsonFile], family: &Family) -> Result<[Option<AddedToken>; 7]> {
    let mut roles = ROLES.map(|_| None);
    for (slot, (role, key)) in roles.iter_mut().zip(ROLES) {
        let found = places.iter().find_map(|file| Some((*file, file.map.get(key)?)));
        let usual = family.roles.iter().find(|(name, _)| *name == role).map(|(_, content)| *content);
        let token = match found {
            Some((_, Value::Null)) => None,
            Some((file, value)) => Some(token(value, true).ok_or_else(|| file.wrong(key, "a token", value))?),
            None => usual.map(|content| AddedToken::from(content, true)),
        };
        let plain = found.is_none_or(|(_, value)| value.is_string());
        let strips = role == Role::Mask && family.mask_strips_left && plain;
        *slot = token.map(|token| AddedToken { special: true, lstrip: token.lstrip || strips, ..token });
    }
    Ok(roles)
}

/// `additional_special_tokens`, under its two names, of the first file that has any.
fn extra(places: &[&JsonFile]) -> Result<Vec<AddedToken>> {
    for file in places {
        for key in ["extra_special_tokens", "additional_special_tokens"] {
            let values: Vec<&Value> = match file.get(key) {
                Some(Value::Array(values)) => values.iter().collect(),
                Some(Value::Object(values)) => values.values().collect(),
                Some(other) => return Err(file.wrong(key, "a list of tokens", other)),
                None => continue,
            };
            if !values.is_empty() {
                let parse = |value| token(value, true).ok_or_else(|| file.wrong(key, "a list of tokens", value));
                return values.into_iter().map(parse).collect();
            }
        }
    }
    Ok(Vec::new())
}

fn decoder(config: &JsonFile) -> Result<BTreeMap<u32, AddedToken>> {
    let key = "added_tokens_decoder";
    let Some(map) = config.get(key).and_then(Value::as_object) else {
        return Err(config.error(format!("`{key}` is not an object")));
    };
    let parse = |(id, value): (&String, &Value)| {
        let parsed = id.parse().ok().zip(token(value, false).filter(|_| value.is_object()));
        parsed.ok_or_else(|| config.wrong(key, "added tokens by id", value))
    };
    map.iter().map(parse).collect()
}

/// A token given as its text, or as an object with `content` and flags; `special` where the object does not say.
fn token(value: &Value, special: bool) -> Option<AddedToken> {
    let content = token_text(value)?;
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(special);
    let token = AddedToken::from(content, special)
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false));
    Some(match flag("normalized") {
        Some(normalized) => token.normalized(normalized),
        None => token,
    })
}

/// A token of a configuration: the text itself, or an object with `content`.
pub(super) fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}
