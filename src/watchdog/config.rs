//! [`EmbedConfig`]: when a run counts as dead.

use std::time::Duration;

use crate::env;
use crate::error::{InferError, Result};

/// When a run counts as dead, and what time it gets to end by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedConfig {
    /// Whether anything is watched at all.
    pub enabled: bool,
    /// End when the process that started this one is gone.
    pub orphan_check: bool,
    /// End when the run has taken so long. Time in which the machine slept, or the process was stopped, does not count.
    pub max: Option<Duration>,
    /// End when fewer units a second than this were persisted over `floor_window`; 0 asks for none.
    pub min_rate: f64,
    /// Over what time the rate is taken.
    pub floor_window: Duration,
    /// Time at the start of a run (loading, first batches) that no window begins in.
    pub floor_grace: Duration,
    /// Time between the call to end and the hard exit.
    pub exit_grace: Duration,
    /// Time between two looks.
    pub interval: Duration,
    /// Whether the report goes to stderr; who tells it in another way than in lines of text does so in the hook.
    pub report_to_stderr: bool,
}

impl EmbedConfig {
    /// Fewer than 6 units persisted in 10 minutes, a day passed, or the parent gone.
    pub fn production() -> Self {
        // Whoever starts the watch later may have loaded a model before, and lost its parent meanwhile.
        super::parent::first_seen();
        Self {
            enabled: true,
            orphan_check: !super::parent::meant_to_outlive(),
            max: Some(Duration::from_secs(24 * 60 * 60)),
            min_rate: 0.01,
            floor_window: Duration::from_secs(600),
            floor_grace: Duration::from_secs(120),
            exit_grace: Duration::from_secs(10),
            interval: Duration::from_millis(500),
            report_to_stderr: true,
        }
    }

    /// Nothing is watched; runs can still be cancelled.
    pub fn disabled() -> Self {
        Self { enabled: false, orphan_check: false, max: None, min_rate: 0.0, ..Self::production() }
    }

    /// [`production`](Self::production) with what the environment says instead; see `kin-infer env` for the variables.
    ///
    /// # Errors
    /// A value that is no number, negative or not of those listed, by the variable's name.
    pub fn from_env() -> Result<Self> {
        Self::from_env_over(Self::production())
    }

    /// `usual` with what the environment says instead.
    pub(crate) fn from_env_over(usual: Self) -> Result<Self> {
        Self::from_values(usual, |variable| variable.value())
    }

    fn from_values(usual: Self, value: impl Fn(&env::Variable) -> Option<String>) -> Result<Self> {
        let usual = match switch(&env::EMBED_WATCHDOG, &value, usual.enabled)? {
            false => return Ok(Self::disabled()),
            true if usual.enabled => usual,
            true => Self::production(),
        };
        let seconds = |variable: &env::Variable, otherwise: Duration| -> Result<Duration> {
            let given = number(variable, &value)?.map(Duration::try_from_secs_f64);
            given.unwrap_or(Ok(otherwise)).map_err(|e| wrong(variable, &e.to_string()))
        };
        let usual_max = usual.max.unwrap_or_default();
        Ok(Self {
            orphan_check: switch(&env::EMBED_ORPHAN_CHECK, &value, usual.orphan_check)?,
            max: Some(seconds(&env::EMBED_MAX_SECS, usual_max)?).filter(|max| !max.is_zero()),
            min_rate: number(&env::EMBED_MIN_RATE, &value)?.unwrap_or(usual.min_rate),
            floor_window: seconds(&env::EMBED_FLOOR_WINDOW_SECS, usual.floor_window)?.max(usual.interval),
            floor_grace: seconds(&env::EMBED_FLOOR_GRACE_SECS, usual.floor_grace)?,
            ..usual
        })
    }
}

fn wrong(variable: &env::Variable, found: &str) -> InferError {
    InferError::InvalidArgument(format!("{}: expected {}, found {found}", variable.name, variable.values))
}

/// A number that is finite and not negative.
fn number(variable: &env::Variable, value: impl Fn(&env::Variable) -> Option<String>) -> Result<Option<f64>> {
    let Some(text) = value(variable) else { return Ok(None) };
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
        _ => Err(wrong(variable, &format!("`{text}`"))),
    }
}

fn switch(variable: &env::Variable, value: impl Fn(&env::Variable) -> Option<String>, otherwise: bool) -> Result<bool> {
    let Some(text) = value(variable) else { return Ok(otherwise) };
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(wrong(variable, &format!("`{text}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<EmbedConfig> {
        EmbedConfig::from_values(EmbedConfig::production(), |v| {
            pairs.iter().find(|(n, _)| *n == v.name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn the_environment_changes_what_it_names_and_nothing_else() {
        assert_eq!(from(&[]).unwrap(), EmbedConfig::production());
        let given = from(&[
            ("KIN_EMBED_ORPHAN_CHECK", "off"),
            ("KIN_EMBED_MAX_SECS", "1.5"),
            ("KIN_EMBED_MIN_RATE", "20"),
            ("KIN_EMBED_FLOOR_WINDOW_SECS", "30"),
            ("KIN_EMBED_FLOOR_GRACE_SECS", "0"),
        ]);
        let expected = EmbedConfig {
            orphan_check: false,
            max: Some(Duration::from_millis(1500)),
            min_rate: 20.0,
            floor_window: Duration::from_secs(30),
            floor_grace: Duration::ZERO,
            ..EmbedConfig::production()
        };
        assert_eq!(given.unwrap(), expected);
        assert_eq!(from(&[("KIN_EMBED_MAX_SECS", "0")]).unwrap().max, None);
        let off = from(&[("KIN_EMBED_WATCHDOG", "off"), ("KIN_EMBED_MAX_SECS", "1")]).unwrap();
        assert_eq!(off, EmbedConfig::disabled());
        assert!(!off.enabled);
        let on = EmbedConfig::from_values(EmbedConfig::disabled(), |v| {
            (v.name == "KIN_EMBED_WATCHDOG").then(|| "on".to_string())
        });
        assert_eq!(on.unwrap(), EmbedConfig::production());
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (name, value) in [
            ("KIN_EMBED_WATCHDOG", "maybe"),
            ("KIN_EMBED_ORPHAN_CHECK", "2"),
            ("KIN_EMBED_MAX_SECS", "soon"),
            ("KIN_EMBED_MAX_SECS", "-1"),
            ("KIN_EMBED_MAX_SECS", "1e300"),
            ("KIN_EMBED_MIN_RATE", "NaN"),
            ("KIN_EMBED_FLOOR_WINDOW_SECS", "inf"),
            ("KIN_EMBED_FLOOR_GRACE_SECS", "1 minute"),
        ] {
            let message = from(&[(name, value)]).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("expected"), "{message}");
        }
    }
}
