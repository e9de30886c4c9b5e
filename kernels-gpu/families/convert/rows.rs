//! The rows of the family `convert`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_convert {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            convert {
                "convert" PruneParams Own {
                    prune_f16 F16, prune_bf16 Bf16, prune_int8 Int8: Direct, Word32;
                }
                "convert" ConvertParams Own {
                    convert_score_f32 F32, convert_score_f64 F64, convert_score_f16 F16, convert_score_bf16 Bf16: Direct, Score<true>;
                    convert_score_f32_any F32, convert_score_f64_any F64, convert_score_f16_any F16, convert_score_bf16_any Bf16: Direct, Score<false>;
                    convert_select_f32 F32, convert_select_f64 F64: Direct, Select;
                    convert_tally_f32 F32, convert_tally_f64 F64: Direct, Tally;
                    convert_index F32: Direct, Index;
                    convert_mark F32: Direct, Mark;
                    convert_fill_dense_16 F16: Direct, FillDense<true>;
                    convert_fill_dense_32 F32: Direct, FillDense<true>;
                    convert_fill_dense_64 F64: Direct, FillDense<true>;
                    convert_fill_dense_16_any F16: Direct, FillDense<false>;
                    convert_fill_dense_32_any F32: Direct, FillDense<false>;
                    convert_fill_dense_64_any F64: Direct, FillDense<false>;
                    convert_fill_csr_16 F16: Direct, FillCsr;
                    convert_fill_csr_32 F32: Direct, FillCsr;
                    convert_fill_csr_64 F64: Direct, FillCsr;
                }
                "convert" ScatterParams Own {
                    scatter_16 F16: Direct, Four;
                }
                "convert" ExpandParams Own {
                    expand_places F32: Direct, Expand<EXPAND_PLACES>;
                    expand_16 F16: Direct, Expand<EXPAND_VALUES>;
                    expand_32 F32: Direct, Expand<EXPAND_VALUES>;
                    expand_strips F32: Direct, Expand<EXPAND_STRIPS>;
                }
                "convert" ListParams Own {
                    lists_survey F32: Direct, Lists<LIST_SURVEY>;
                    lists_place F32: Direct, Lists<LIST_PLACE>;
                    lists_fill F32: Direct, Lists<LIST_FILL>;
                }
                "convert" SlicingParams Own {
                    slicing_order F32: Direct, Slicing<SLICING_ORDER>;
                    slicing_count F32: Direct, Slicing<SLICING_COUNT>;
                    slicing_fill_16 F16: Direct, Slicing<SLICING_FILL>;
                    slicing_fill_32 F32: Direct, Slicing<SLICING_FILL>;
                    slicing_fill_64 F64: Direct, Slicing<SLICING_FILL>;
                    slicing_values_16 F16: Direct, Slicing<SLICING_VALUES>;
                    slicing_values_32 F32: Direct, Slicing<SLICING_VALUES>;
                }
                "entries" EntriesParams Own {
                    entries_rows F32: Direct, EntryRows;
                    entries_offsets F32: Direct, EntryOffsets;
                    entries_check F32: Direct, CheckEntries;
                    entries_sort_count F32: Direct, SortCount;
                    entries_sort_place F32: Direct, SortPlace;
                    entries_sort_move F32: Direct, SortMove;
                    entries_group_starts F32: Direct, GroupStarts;
                    entries_fill_slots_16 F16: Direct, FillSlots;
                    entries_fill_slots_32 F32: Direct, FillSlots;
                    entries_fill_slots_64 F64: Direct, FillSlots;
                    entries_permute_16 F16: Direct, PermuteValues;
                    entries_permute_32 F32: Direct, PermuteValues;
                    entries_permute_64 F64: Direct, PermuteValues;
                    entries_reorder_places_t8 F32: Direct, ReorderPlaces<8192>;
                    entries_reorder_places_t16 F32: Direct, ReorderPlaces<16384>;
                    entries_split_16_t8 F16: Direct, Split<8192>;
                    entries_split_16_t16 F16: Direct, Split<16384>;
                    entries_split_32_t8 F32: Direct, Split<8192>;
                    entries_split_32_t16 F32: Direct, Split<16384>;
                    entries_split_64_t8 F64: Direct, Split<8192>;
                    entries_join_16_t8 F16: Direct, Join<8192>;
                    entries_join_16_t16 F16: Direct, Join<16384>;
                    entries_join_32_t8 F32: Direct, Join<8192>;
                    entries_join_32_t16 F32: Direct, Join<16384>;
                    entries_join_64_t8 F64: Direct, Join<8192>;
                    entries_top_f32 F32, entries_top_f64 F64, entries_top_f16 F16, entries_top_bf16 Bf16: Direct, TopEntries;
                    entries_compact_f32 F32, entries_compact_f64 F64, entries_compact_f16 F16, entries_compact_bf16 Bf16: Direct, Compact<true>;
                    entries_compact_f32_any F32, entries_compact_f64_any F64, entries_compact_f16_any F16, entries_compact_bf16_any Bf16: Direct, Compact<false>;
                }
            }
        }
    };
}
