//! Samples as CSV: all of them, to be read again, and a summary of each guest, small enough to be kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::analysis::{GuestSamples, Table};
use crate::protocol::Measurement;

const FIXED: [&str; 6] = ["guest", "arm", "sample", "metric", "value", "unit"];

/// The names behind the fixed columns: `dim.X` for each dimension and `count.X` for each count of any sample.
struct Names<'a> {
    dimensions: BTreeSet<&'a String>,
    counts: BTreeSet<&'a String>,
}

impl<'a> Names<'a> {
    fn of(samples: &'a [(usize, GuestSamples)]) -> Self {
        let all = || samples.iter().flat_map(|(_, guest)| &guest.samples);
        Self {
            dimensions: all().flat_map(|sample| sample.dimensions.keys()).collect(),
            counts: all().flat_map(|sample| sample.counts.keys()).collect(),
        }
    }

    fn header(&self) -> String {
        let dimensions = self.dimensions.iter().map(|name| format!(",dim.{name}"));
        dimensions.chain(self.counts.iter().map(|name| format!(",count.{name}"))).collect()
    }

    /// What stands below the header; empty where a sample has no such dimension or count.
    fn fields(&self, dimensions: &BTreeMap<String, String>, counts: &BTreeMap<String, u64>) -> String {
        let of_dimension = |name: &&String| format!(",{}", dimensions.get(*name).map_or("", String::as_str));
        let of_count =
            |name: &&String| format!(",{}", counts.get(*name).map(u64::to_string).unwrap_or_default());
        self.dimensions.iter().map(of_dimension).chain(self.counts.iter().map(of_count)).collect()
    }
}

/// All samples, one a line.
pub(super) fn all(samples: &[(usize, GuestSamples)]) -> String {
    let names = Names::of(samples);
    let mut text = format!("{}{}\n", FIXED.join(","), names.header());
    for (index, guest) in samples {
        for (number, sample) in guest.samples.iter().enumerate() {
            let (metric, value, unit) = (&sample.metric, sample.value, &sample.unit);
            let fields = names.fields(&sample.dimensions, &sample.counts);
            let _ = writeln!(text, "{index},{},{number},{metric},{value},{unit}{fields}", guest.arm);
        }
    }
    text
}

/// One line for each guest and cell: how many samples, their median, both 99th percentiles and maximum.
pub(super) fn by_guest(samples: &[(usize, GuestSamples)]) -> String {
    let names = Names::of(samples);
    let head = "guest,arm,metric,unit,samples,median,p99_floor,p99_nearest_rank,max";
    let mut text = format!("{head}{}\n", names.header());
    for (index, guest) in samples {
        for row in Table::new(std::slice::from_ref(guest)).summaries(std::slice::from_ref(&guest.arm)) {
            let (arm, metric, unit, n) = (&row.arm, &row.metric, &row.unit, row.samples);
            let values = [row.median, row.p99_floor, row.p99_nearest_rank, row.max].map(|v| format!(",{v}"));
            let fields = names.fields(&row.dimensions, &row.counts);
            let _ = writeln!(text, "{index},{arm},{metric},{unit},{n}{}{fields}", values.concat());
        }
    }
    text
}

/// Reads what [`all`] wrote.
///
/// # Errors
/// What is wrong, with the line.
pub(super) fn parse(text: &str) -> Result<Vec<(usize, GuestSamples)>, String> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().ok_or("it is empty")?.split(',').collect();
    if header.get(..FIXED.len()) != Some(&FIXED[..]) {
        return Err(format!("its header does not begin with {}", FIXED.join(",")));
    }
    let mut guests: BTreeMap<usize, GuestSamples> = BTreeMap::new();
    for (number, line) in lines.enumerate() {
        let bad = |what: &str| format!("line {}: {what}", number + 2);
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != header.len() {
            return Err(bad(&format!("{} fields instead of {}", fields.len(), header.len())));
        }
        let mut sample = Measurement {
            metric: fields[3].to_owned(),
            dimensions: BTreeMap::new(),
            value: fields[4].parse().map_err(|_| bad("its value is not a number"))?,
            unit: fields[5].to_owned(),
            counts: BTreeMap::new(),
        };
        for (name, field) in
            header.iter().zip(&fields).skip(FIXED.len()).filter(|(_, field)| !field.is_empty())
        {
            if let Some(name) = name.strip_prefix("dim.") {
                sample.dimensions.insert(name.to_owned(), (*field).to_owned());
            } else if let Some(name) = name.strip_prefix("count.") {
                let count = field.parse().map_err(|_| bad("a count is not a number"))?;
                sample.counts.insert(name.to_owned(), count);
            }
        }
        let index = fields[0].parse().map_err(|_| bad("its guest is not a number"))?;
        let guest = guests
            .entry(index)
            .or_insert_with(|| GuestSamples { arm: fields[1].to_owned(), samples: Vec::new() });
        guest.samples.push(sample);
    }
    Ok(guests.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pages: &str, value: f64) -> Measurement {
        Measurement {
            metric: String::from("move_pages"),
            dimensions: BTreeMap::from([(String::from("pages"), pages.to_owned())]),
            value,
            unit: String::from("ns"),
            counts: BTreeMap::from([(String::from("failed"), 0)]),
        }
    }

    #[test]
    fn samples_survive_the_file() {
        let mut other = sample("16", 1e9);
        other.dimensions = BTreeMap::from([(String::from("call"), String::from("noop"))]);
        other.counts = BTreeMap::new();
        let guests = vec![
            (0, GuestSamples { arm: String::from("a"), samples: vec![sample("1", 12.5), other] }),
            (3, GuestSamples { arm: String::from("b"), samples: vec![sample("1", 0.1)] }),
        ];
        let text = all(&guests);
        assert!(text.starts_with("guest,arm,sample,metric,value,unit,dim.call,dim.pages,count.failed\n"));
        let read = parse(&text).unwrap();
        assert_eq!(read.len(), 2);
        for ((index, guest), (read_index, read_guest)) in guests.iter().zip(&read) {
            assert_eq!(
                (index, &guest.arm, &guest.samples),
                (read_index, &read_guest.arm, &read_guest.samples)
            );
        }
    }

    #[test]
    fn a_guest_is_summed_up_in_a_line_for_each_cell() {
        let samples = vec![sample("1", 3.0), sample("16", 9.0), sample("1", 1.0)];
        let guests = vec![(2, GuestSamples { arm: String::from("a"), samples })];
        let head =
            "guest,arm,metric,unit,samples,median,p99_floor,p99_nearest_rank,max,dim.pages,count.failed\n";
        let rows = "2,a,move_pages,ns,2,1,1,3,3,1,0\n2,a,move_pages,ns,1,9,9,9,9,16,0\n";
        assert_eq!(by_guest(&guests), format!("{head}{rows}"));
    }

    #[test]
    fn broken_files_are_refused_with_their_line() {
        assert!(parse("").unwrap_err().contains("empty"));
        assert!(parse("a,b\n").unwrap_err().contains("header"));
        let head = FIXED.join(",");
        assert!(parse(&format!("{head}\n0,a,0,m,1\n")).unwrap_err().contains("line 2: 5 fields"));
        assert!(parse(&format!("{head}\n0,a,0,m,x,ns\n")).unwrap_err().contains("not a number"));
    }
}
