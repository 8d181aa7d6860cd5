#!/bin/sh
# shellcheck disable=SC2086 # lists of words are meant to be split
# The experiments on books and on enwik8, from nothing, on one machine with a GPU:
#
#     sh experiments/results.sh BOOKS BPE ENWIK8 OUT [STAGE ...]
#
# BOOKS holds train, validation and test, one text file a book; BPE has GPT-2's vocab.json and merges.txt; ENWIK8 is the
# file of 100,000,000 bytes. Stages, in this order unless given: books-base books-search books-comparison books-rates
# enwik8-base enwik8-comparison enwik8-search. A stage that has been done is not done again.
set -eu
[ $# -ge 4 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2; }
books=$1 bpe=$2 enwik8=$3 out=$4
shift 4
[ $# -gt 0 ] || set -- books-base books-search books-comparison books-rates enwik8-base enwik8-comparison enwik8-search
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/..${PYTHONPATH:+:$PYTHONPATH}" RECUR_TUNE_CACHE="$out/cache" TORCHINDUCTOR_CACHE_DIR="$out/compiled"
share=${GPU_SHARE:-0.125} # of the GPU for a trial of a search
comparing="" own_rate=""
mkdir -p "$out"

recur_tune() { "${PYTHON:-python3}" -m recur_tune.cli.main "$@"; }
compare() { # NAME BASE CORPUS READINGS SEEDS FIELD=VALUE …: plain and recurrent, in the background
  name=$1 base=$2 corpus=$3 readings=$4 seeds=$5
  shift 5
  "${PYTHON:-python3}" "$here/paper_comparison.py" --base "$base" --corpus "$corpus" --readings $readings --seeds $seeds \
    --out "$out/$name.json" --runs "$out/runs/$name" $scoring --set bptt_windows=10 learning_rate=1e-3 decay=cosine \
    warmup_steps=50 cuda_graph=true fused_kernels=true checkpointing=none "$@" --set-recurrent pooling=recent embeddings=8 l_ins=all skip=true \
    $own_rate > "$out/$name.log" 2>&1 &
  comparing="$comparing $!"
}
compared() { # Wait for all of them; any that failed fails the stage.
  failed=0
  for one in $comparing; do wait "$one" || failed=$?; done
  comparing=""
  return $failed
}

look_at() { # NAME OPTION …: the front of a search on documents that it has not seen, and its report
  name=$1
  shift
  "${PYTHON:-python3}" "$here/front_on_test.py" "$out/results/$name" --out "$out/$name-front.json" \
    --trials "$out/$name-trials.csv" "$@"
  recur_tune report "$name" --results "$out/results" --out "$out/$name-report.html" --png
}

for stage; do
  [ ! -e "$out/$stage.done" ] || continue
  echo "$(date +%T) $stage"
  case $stage in
    books-base)
      recur_tune pretrain --preset mini --corpus "text:$books" --tokenizer "$bpe" --window 512 --batch 96 --tokens 160M \
        --dropout 0.1 --out "$out/books-base" --json > "$out/$stage.json"
      ;;
    books-search)
      recur_tune search texts --name books --results "$out/results" --set "space.base=$out/books-base" \
        --set "space.corpus=text:$books" --set "space.tokenizer=$bpe" --set "resources.gpus=$share" \
        ${SEARCH_TIME:+--time $SEARCH_TIME}
      look_at books --opening 50k
      ;;
    books-comparison)
      scoring="--opening 50k"
      fields="tokens=30M batch=16 validate_every=30M validation_tokens=20k dropout=0.1"
      # Side by side: compiling one leaves the GPU to the others.
      compare books-0 "$out/books-base" "text:$books" "300/0 300/30" 0 $fields
      compare books-1 "$out/books-base" "text:$books" "100/0" "0 1" $fields
      compare books-2 "$out/books-base" "text:$books" "300/0" 1 $fields
      compare books-3 "$out/books-base" "text:$books" "300/10 300/50" 0 $fields
      compared
      ;;
    books-rates) # Each side at several rates; what the recurrence adds learns at 1e-3 throughout.
      scoring="--opening 50k"
      for rate in 3e-5,33.3 1e-4,10 3e-4,3.33 1e-3,1; do
        own_rate="recurrence_rate=${rate#*,}" rate=${rate%,*}
        fields="tokens=9M batch=16 validate_every=9M validation_tokens=20k dropout=0.1 learning_rate=$rate"
        for reading in 300/0 100/0; do
          compare "rate-$rate-${reading%/*}" "$out/books-base" "text:$books" $reading "0 1" $fields
        done
      done
      compared
      own_rate=""
      ;;
    enwik8-base)
      recur_tune pretrain --preset mini --corpus "enwik8:$enwik8" --tokenizer bytes --window 512 --batch 96 --tokens 160M \
        --out "$out/enwik8-base" --json > "$out/$stage.json"
      ;;
    enwik8-comparison)
      scoring="--opening 2M --pieces 100k --metric bits_per_byte"
      fields="tokens=15M batch=16 validate_every=15M validation_tokens=50k"
      compare enwik8-0 "$out/enwik8-base" "enwik8:$enwik8" "300/0" 0 $fields
      compare enwik8-1 "$out/enwik8-base" "enwik8:$enwik8" "300/0" 1 $fields
      compare enwik8-2 "$out/enwik8-base" "enwik8:$enwik8" "100/0" 0 $fields
      compare enwik8-3 "$out/enwik8-base" "enwik8:$enwik8" "100/0" 1 $fields
      compare enwik8-4 "$out/enwik8-base" "enwik8:$enwik8" "300/30" 0 $fields
      compared
      ;;
    enwik8-search)
      recur_tune search enwik8-short --name enwik8 --results "$out/results" --set "space.base=$out/enwik8-base" \
        --set "space.corpus=enwik8:$enwik8" --set "resources.gpus=$share" ${SEARCH_TIME:+--time $SEARCH_TIME}
      look_at enwik8 --opening 2M --pieces 100k --metric bits_per_byte
      ;;
    *) echo "there is no stage $stage" >&2; exit 2 ;;
  esac
  touch "$out/$stage.done"
done
echo "$(date +%T) done"
