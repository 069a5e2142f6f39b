//! The cores that Windows lists: records of `SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX` with the relation of a core.

use super::host::Cores;

/// A core: its kind, larger where it is faster, and its threads as bits of processor groups.
struct Core {
    class: u8,
    threads: Vec<(u16, u64)>,
}

/// What the records say of the cores on which a process may run: those whose threads have a bit in `affinity`, where
/// there is one group of processors; with several, the mask is of one of them, and all cores count. None where the
/// records are not understood.
pub(super) fn cores(records: &[u8], affinity: u64) -> Option<Cores> {
    let all = read(records)?;
    let one_group = all.iter().flat_map(|core| &core.threads).all(|(group, _)| *group == 0);
    let mask = if one_group && affinity != 0 { affinity } else { u64::MAX };
    let threads = |core: &Core, mask: u64| core.threads.iter().map(|(_, bits)| (bits & mask).count_ones()).sum::<u32>();
    let allowed: Vec<&Core> = all.iter().filter(|core| threads(core, mask) > 0).collect();
    let fastest = allowed.iter().map(|core| core.class).max()?;
    let fast = allowed.iter().filter(|core| core.class == fastest).count();
    let two_kinds = fast < allowed.len();
    Some(Cores {
        logical: all.iter().map(|core| threads(core, u64::MAX) as usize).sum(),
        allowed: allowed.iter().map(|core| threads(core, mask) as usize).sum(),
        physical: allowed.len(),
        performance: two_kinds.then_some(fast),
        efficiency: two_kinds.then_some(allowed.len() - fast),
    })
}

/// The records of cores. Each begins with its relation and its size; a core's then has flags, its efficiency class, 20
/// reserved bytes, the number of its groups, and their masks with the groups' numbers, 16 bytes each.
fn read(mut records: &[u8]) -> Option<Vec<Core>> {
    const CORE: u32 = 0;
    const HEAD: usize = 32;
    const GROUP: usize = 16;
    let mut cores = Vec::new();
    while !records.is_empty() {
        let word = |at: usize| Some(u32::from_le_bytes(records.get(at..at + 4)?.try_into().ok()?));
        let size = word(4)? as usize;
        let record = records.get(..size).filter(|record| record.len() >= HEAD)?;
        if word(0)? == CORE {
            let groups = u16::from_le_bytes([record[30], record[31]]) as usize;
            let masks = record.get(HEAD..HEAD + groups * GROUP)?.chunks_exact(GROUP);
            let mask = |bytes: &[u8]| Some(u64::from_le_bytes(bytes[..8].try_into().ok()?));
            let of_group = |bytes: &[u8]| Some((u16::from_le_bytes([bytes[8], bytes[9]]), mask(bytes)?));
            cores.push(Core { class: record[9], threads: masks.map(of_group).collect::<Option<_>>()? });
        }
        records = &records[size..];
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(relation: u32, class: u8, groups: &[(u16, u64)]) -> Vec<u8> {
        let mut bytes = relation.to_le_bytes().to_vec();
        bytes.extend((32 + 16 * groups.len() as u32).to_le_bytes());
        bytes.extend([u8::from(groups.iter().any(|(_, mask)| mask.count_ones() > 1)), class]);
        bytes.extend([0; 20]);
        bytes.extend((groups.len() as u16).to_le_bytes());
        for (group, mask) in groups {
            bytes.extend(mask.to_le_bytes());
            bytes.extend(group.to_le_bytes());
            bytes.extend([0; 6]);
        }
        bytes
    }

    fn of(list: &[(u8, u16, u64)], affinity: u64) -> Cores {
        let records: Vec<u8> =
            list.iter().flat_map(|(class, group, mask)| record(0, *class, &[(*group, *mask)])).collect();
        cores(&records, affinity).unwrap()
    }

    #[test]
    fn threads_of_a_core_count_once_and_only_the_allowed_count() {
        let four = [(0, 0, 0b11), (0, 0, 0b1100), (0, 0, 0b11_0000), (0, 0, 0b1100_0000)];
        let all = Cores { logical: 8, allowed: 8, physical: 4, performance: None, efficiency: None };
        assert_eq!(of(&four, 0xff), all);
        assert_eq!(of(&four, 0), all, "no mask is known");
        assert_eq!(of(&four, 0b1_0111), Cores { allowed: 4, physical: 3, ..all });
    }

    #[test]
    fn faster_cores_have_the_larger_class() {
        let mixed = [(1, 0, 0b11), (1, 0, 0b1100), (0, 0, 0b1_0000), (0, 0, 0b10_0000), (0, 0, 0b100_0000)];
        let all = Cores { logical: 7, allowed: 7, physical: 5, performance: Some(2), efficiency: Some(3) };
        assert_eq!(of(&mixed, 0x7f), all);
        // Bound to one kind, there is one.
        let slow = Cores { allowed: 2, physical: 2, performance: None, efficiency: None, ..all };
        assert_eq!(of(&mixed, 0b11_0000), slow);
    }

    #[test]
    fn with_several_groups_every_core_counts() {
        let groups = [(0, 0, 0b11), (0, 1, 0b11), (0, 1, 0b1100)];
        let all = Cores { logical: 6, allowed: 6, physical: 3, performance: None, efficiency: None };
        assert_eq!(of(&groups, 0b1), all);
    }

    #[test]
    fn other_relations_are_passed_over_and_nonsense_says_nothing() {
        let core = record(0, 0, &[(0, 1)]);
        let package = record(3, 0, &[(0, 0b11)]);
        let found = cores(&[&package[..], &core].concat(), 0).unwrap();
        assert_eq!((found.logical, found.physical), (1, 1));
        for len in 1..core.len() {
            assert_eq!(cores(&core[..len], 0), None, "{len}");
        }
        let mut endless = core.clone();
        endless[4..8].fill(0);
        assert_eq!((cores(&endless, 0), cores(&[], 0)), (None, None));
        let mut many = core;
        many[30] = 9;
        assert_eq!(cores(&many, 0), None);
    }
}
