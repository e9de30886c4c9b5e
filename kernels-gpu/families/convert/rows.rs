//! The rows of the family `convert`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_convert {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            convert {
                prune "prune" PruneParams Own {
                    prune_f16: Direct, F16, Word32;
                    prune_bf16: Direct, Bf16, Word32;
                    prune_int8: Direct, Int8, Word32;
                }
                convert "convert" ConvertParams Own {
                    convert_score_f32: Direct, F32, Score<true>;
                    convert_score_f64: Direct, F64, Score<true>;
                    convert_score_f16: Direct, F16, Score<true>;
                    convert_score_bf16: Direct, Bf16, Score<true>;
                    convert_score_f32_any: Direct, F32, Score<false>;
                    convert_score_f64_any: Direct, F64, Score<false>;
                    convert_score_f16_any: Direct, F16, Score<false>;
                    convert_score_bf16_any: Direct, Bf16, Score<false>;
                    convert_select_f32: Direct, F32, Select;
                    convert_select_f64: Direct, F64, Select;
                    convert_tally_f32: Direct, F32, Tally;
                    convert_tally_f64: Direct, F64, Tally;
                    convert_index: Direct, F32, Index;
                    convert_mark: Direct, F32, Mark;
                    convert_fill_dense_16: Direct, F16, FillDense<true>;
                    convert_fill_dense_32: Direct, F32, FillDense<true>;
                    convert_fill_dense_64: Direct, F64, FillDense<true>;
                    convert_fill_dense_16_any: Direct, F16, FillDense<false>;
                    convert_fill_dense_32_any: Direct, F32, FillDense<false>;
                    convert_fill_dense_64_any: Direct, F64, FillDense<false>;
                    convert_fill_csr_16: Direct, F16, FillCsr;
                    convert_fill_csr_32: Direct, F32, FillCsr;
                    convert_fill_csr_64: Direct, F64, FillCsr;
                }
                scatter "scatter" ScatterParams Own {
                    scatter_16: Direct, F16, Four;
                }
                expand "expand" ExpandParams Own {
                    expand_places: Direct, F32, Expand<EXPAND_PLACES>;
                    expand_16: Direct, F16, Expand<EXPAND_VALUES>;
                    expand_32: Direct, F32, Expand<EXPAND_VALUES>;
                    expand_strips: Direct, F32, Expand<EXPAND_STRIPS>;
                }
                lists "lists" ListParams Own {
                    lists_survey: Direct, F32, Lists<LIST_SURVEY>;
                    lists_place: Direct, F32, Lists<LIST_PLACE>;
                    lists_fill: Direct, F32, Lists<LIST_FILL>;
                }
                slicing "slicing" SlicingParams Own {
                    slicing_order: Direct, F32, Slicing<SLICING_ORDER>;
                    slicing_count: Direct, F32, Slicing<SLICING_COUNT>;
                    slicing_fill_16: Direct, F16, Slicing<SLICING_FILL>;
                    slicing_fill_32: Direct, F32, Slicing<SLICING_FILL>;
                    slicing_fill_64: Direct, F64, Slicing<SLICING_FILL>;
                    slicing_values_16: Direct, F16, Slicing<SLICING_VALUES>;
                    slicing_values_32: Direct, F32, Slicing<SLICING_VALUES>;
                }
                entries "entries" EntriesParams Own {
                    entries_rows: Direct, F32, EntryRows;
                    entries_offsets: Direct, F32, EntryOffsets;
                    entries_check: Direct, F32, CheckEntries;
                    entries_sort_count: Direct, F32, SortCount;
                    entries_sort_place: Direct, F32, SortPlace;
                    entries_sort_move: Direct, F32, SortMove;
                    entries_group_starts: Direct, F32, GroupStarts;
                    entries_fill_slots_16: Direct, F16, FillSlots;
                    entries_fill_slots_32: Direct, F32, FillSlots;
                    entries_fill_slots_64: Direct, F64, FillSlots;
                    entries_permute_16: Direct, F16, PermuteValues;
                    entries_permute_32: Direct, F32, PermuteValues;
                    entries_permute_64: Direct, F64, PermuteValues;
                    entries_reorder_places_t8: Direct, F32, ReorderPlaces<8192>;
                    entries_reorder_places_t16: Direct, F32, ReorderPlaces<16384>;
                    entries_split_16_t8: Direct, F16, Split<8192>;
                    entries_split_16_t16: Direct, F16, Split<16384>;
                    entries_split_32_t8: Direct, F32, Split<8192>;
                    entries_split_32_t16: Direct, F32, Split<16384>;
                    entries_split_64_t8: Direct, F64, Split<8192>;
                    entries_join_16_t8: Direct, F16, Join<8192>;
                    entries_join_16_t16: Direct, F16, Join<16384>;
                    entries_join_32_t8: Direct, F32, Join<8192>;
                    entries_join_32_t16: Direct, F32, Join<16384>;
                    entries_join_64_t8: Direct, F64, Join<8192>;
                    entries_top_f32: Direct, F32, TopEntries;
                    entries_top_f64: Direct, F64, TopEntries;
                    entries_top_f16: Direct, F16, TopEntries;
                    entries_top_bf16: Direct, Bf16, TopEntries;
                    entries_compact_f32: Direct, F32, Compact<true>;
                    entries_compact_f64: Direct, F64, Compact<true>;
                    entries_compact_f16: Direct, F16, Compact<true>;
                    entries_compact_bf16: Direct, Bf16, Compact<true>;
                    entries_compact_f32_any: Direct, F32, Compact<false>;
                    entries_compact_f64_any: Direct, F64, Compact<false>;
                    entries_compact_f16_any: Direct, F16, Compact<false>;
                    entries_compact_bf16_any: Direct, Bf16, Compact<false>;
                }
            }
        }
    };
}
