import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stoker import SourceError
from stoker.demo.data import CHECKED_COLUMN, checksum_of, find_data, make_data
from stoker.demo.ranking import ID_CARDINALITIES, MAX_HISTORY, column_names, ranking_table


@pytest.fixture(scope="module")
def table():
    return ranking_table(num_rows=6_000, seed=7, part=3)


def test_the_same_arguments_give_the_same_rows(table):
    assert table.equals(ranking_table(num_rows=6_000, seed=7, part=3))
    assert not table.equals(ranking_table(num_rows=6_000, seed=8, part=3))
    assert not table.equals(ranking_table(num_rows=6_000, seed=7, part=4))


def test_a_query_has_about_20_candidates_that_lie_together(table):
    query_id = table["query_id"].to_numpy()
    queries, counts = np.unique(query_id, return_counts=True)
    assert np.array_equal(np.sort(query_id), query_id)
    assert counts[:-1].min() >= 10
    assert counts.max() <= 30
    assert 18 < len(query_id) / len(queries) < 22


def test_query_features_are_the_same_for_all_candidates_of_a_query(table):
    query_id = table["query_id"].to_numpy()
    same_query = np.flatnonzero(query_id[1:] == query_id[:-1])
    assert len(same_query) > 0
    shared = ["country", "query_embedding", "clicked_items", "viewed_categories", "id_00", "id_19"]
    for name in [*shared, *(f"context_{i}" for i in range(6))]:
        column = table[name].combine_chunks()
        assert column.take(same_query).equals(column.take(same_query + 1)), name


def test_ids_stay_within_their_cardinality_and_small_ones_are_all_seen(table):
    for i, cardinality in enumerate(ID_CARDINALITIES):
        ids = table[f"id_{i:02}"].to_numpy()
        assert ids.min() >= 0
        assert ids.max() < cardinality
    assert len(np.unique(table["id_02"])) == ID_CARDINALITIES[2]


def test_histories_have_up_to_50_entries_and_none_is_null(table):
    lengths = pc.list_value_length(table["clicked_items"]).to_numpy()
    assert lengths.min() == 0
    assert lengths.max() == MAX_HISTORY
    assert all(table[name].null_count == 0 for name in table.column_names)


def test_labels_are_a_minority_that_depends_on_the_features(table):
    label = table["label"].to_numpy()
    assert 0.1 < label.mean() < 0.4
    assert table["dense_00"].to_numpy()[label == 1].mean() > table["dense_00"].to_numpy()[label == 0].mean() + 0.2


@pytest.mark.parametrize("num_rows", [32, 1_000, 4_097])
def test_files_hold_exactly_the_rows_asked_for(tmp_path, num_rows):
    data = make_data(tmp_path / "data", num_rows=num_rows)
    tables = [pq.read_table(path) for path in data.paths]
    assert sum(len(table) for table in tables) == num_rows == data.num_rows
    assert tables[0].column_names == column_names()
    sums = [checksum_of(table[CHECKED_COLUMN].to_numpy()) for table in tables]
    assert sum(sums) % 2**64 == data.checksum


def test_a_complete_data_set_is_found_again(tmp_path):
    written = make_data(tmp_path / "data", num_rows=200)
    found = make_data(tmp_path / "data", num_rows=200)
    assert (written.was_there, found.was_there) == (False, True)
    assert found.sizes == written.sizes
    assert make_data(tmp_path / "data", num_rows=300).was_there is False


def test_a_data_set_that_lacks_a_file_or_its_marker_is_written_anew(tmp_path):
    data = make_data(tmp_path / "data", num_rows=200)
    data.paths[3].write_bytes(b"cut off")
    assert find_data(data.folder, num_rows=200) is None
    assert make_data(data.folder, num_rows=200).sizes == data.sizes
    (data.folder / "complete.json").unlink()
    assert make_data(data.folder, num_rows=200).was_there is False


def test_a_folder_with_files_of_others_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SourceError, match=r"thesis\.txt"):
        make_data(tmp_path, num_rows=200)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_too_few_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 32 rows"):
        make_data(tmp_path, num_rows=10)


def test_the_checksum_sees_lost_doubled_and_changed_rows_but_no_order():
    values = np.random.default_rng(0).standard_normal(1_000, dtype=np.float32)
    assert checksum_of(values[::-1]) == checksum_of(values)
    assert checksum_of(values[1:]) != checksum_of(values)
    assert checksum_of(np.append(values[1:], values[2])) != checksum_of(values)
