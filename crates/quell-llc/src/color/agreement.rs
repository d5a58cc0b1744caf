//! How far two classifications of the same pages agree. Colors are names of one run, so they are matched first.

use super::classify::Classification;

/// Two classifications side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Pages by color in the first (rows) and the second classification (columns).
    pub table: Vec<Vec<u32>>,
    /// For each color of the first the color of the second that it became; `None` if no color is left for it.
    pub partner: Vec<Option<usize>>,
    /// Pages that have a color in both.
    pub compared: u32,
    /// Those of them whose colors are partners.
    pub agreeing: u32,
}

impl Agreement {
    /// Compares two classifications of the same pool.
    #[must_use]
    pub fn between(a: &Classification, b: &Classification) -> Self {
        Self::of(&a.labels, a.colors(), &b.labels, b.colors())
    }

    /// Compares two labelings of the same pages, with `rows` and `columns` colors. Partners are chosen by
    /// largest overlap first.
    #[must_use]
    pub fn of(a: &[Option<u32>], rows: usize, b: &[Option<u32>], columns: usize) -> Self {
        let mut table = vec![vec![0; columns]; rows];
        for (a, b) in a.iter().zip(b) {
            if let (Some(a), Some(b)) = (a, b) {
                table[*a as usize][*b as usize] += 1;
            }
        }
        let mut cells: Vec<(u32, usize, usize)> = (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .map(|(row, column)| (table[row][column], row, column))
            .collect();
        cells.sort_by(|x, y| y.cmp(x));
        let mut partner = vec![None; rows];
        let mut used = vec![false; columns];
        for (pages, row, column) in cells {
            if pages > 0 && partner[row].is_none() && !used[column] {
                partner[row] = Some(column);
                used[column] = true;
            }
        }
        let agreeing =
            partner.iter().enumerate().filter_map(|(row, column)| Some(table[row][(*column)?])).sum();
        let compared = table.iter().flatten().sum();
        Self { table, partner, compared, agreeing }
    }

    /// Share of the pages with a color in both whose colors agree; `None` without such pages.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.compared > 0).then(|| f64::from(self.agreeing) / f64::from(self.compared))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Renaming colors changes nothing.
        #[test]
        fn names_do_not_matter(labels in prop::collection::vec(prop::option::of(0_u32..8), 1..200), shift in 0_u32..8) {
            let renamed: Vec<Option<u32>> = labels.iter().map(|l| l.map(|l| (l + shift) % 8)).collect();
            let agreement = Agreement::of(&labels, 8, &renamed, 8);
            prop_assert_eq!(agreement.agreeing, agreement.compared);
            prop_assert_eq!(agreement.compared as usize, labels.iter().flatten().count());
        }
    }

    #[test]
    fn pages_that_changed_color_disagree_and_unknown_ones_do_not_count() {
        let a = [Some(0), Some(0), Some(0), Some(1), Some(1), None];
        let b = [Some(1), Some(1), Some(0), Some(0), None, Some(0)];
        let agreement = Agreement::of(&a, 2, &b, 2);
        assert_eq!((agreement.compared, agreement.agreeing), (4, 3));
        assert_eq!(agreement.partner, [Some(1), Some(0)]);
        assert_eq!(agreement.share(), Some(0.75));
        assert_eq!(Agreement::of(&[None], 1, &[Some(0)], 1).share(), None);
    }
}
