-- The score of the `inference_lb` algorithm, step by step as the crate `scheduling` computes it, so that the numbers are
-- the same to the last bit. `rows` have `requests`, `prefill` and `matched`.

local function weight(given)
  if given > 0 then
    return math.min(given, 1e100)
  end
  return 0
end

local function share(part, all)
  if all > 0 then
    return part / all
  end
  return 0
end

-- The scores within 0 to 1, and those before.
local function score(params, rows, chunks)
  local cache, prefill = weight(params.cache), weight(params.prefill)
  local least, most, longest = rows[1].requests, rows[1].requests, params.floor
  for _, row in ipairs(rows) do
    least = math.min(least, row.requests)
    most = math.max(most, row.requests)
    longest = math.max(longest, row.prefill)
  end
  local delta = math.max(most - least, 2)
  local growth = delta / 5
  if params.growth == 'ceil' then
    growth = math.ceil(growth)
  else
    growth = math.max(growth, 1)
  end
  local requests = weight(params.requests) * growth
  local scores, raws = {}, {}
  for at, row in ipairs(rows) do
    local queued = (row.requests - least) / delta
    local prompt = share(math.max(row.prefill, 0), longest)
    local cached = share(math.min(row.matched, chunks), chunks)
    local raw = cache * cached - requests * queued - prefill * prompt
    local normal = share(raw + requests + prefill, cache + requests + prefill)
    scores[at], raws[at] = math.min(math.max(normal, 0), 1), raw
  end
  return scores, raws
end

-- What a prompt is charged as prefill where `matched` of its chunks are cached: `least` of it at least.
local function prefill_charge(kind, length, least, matched, chunks)
  if kind == 'full' or chunks == 0 then
    return length
  end
  local uncached = length * math.max(chunks - matched, 0)
  local rest = math.fmod(uncached, chunks)
  local charge = (uncached - rest) / chunks + (rest > 0 and 1 or 0)
  return math.max(charge, math.min(length, least))
end
