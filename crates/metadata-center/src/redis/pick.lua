-- Scores the candidates, picks one of the best and reserves it. Candidates come as endpoint, matched chunks, bias. The
-- answer is whether it was picked now or reserved before, its charge, then picks as index among the candidates (0 for
-- none), endpoint, score, raw score, requests, prefill.
local id, reserve_ms, random = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local chunks, length, count = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local params = {
  cache = tonumber(ARGV[7]),
  requests = tonumber(ARGV[8]),
  prefill = tonumber(ARGV[9]),
  growth = ARGV[10],
  floor = tonumber(ARGV[11]),
}
local score_weight, percent, charge_kind = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local least_charge = tonumber(ARGV[15])
local room, max_endpoints = tonumber(ARGV[16]), tonumber(ARGV[17])
local log_length, speculative_s, hashes, origin = ARGV[18], ARGV[19], ARGV[20], ARGV[21]
local FIRST = 22
-- Not all at once: they go over the stack.
local STEP = 1000

local reserved = redis.call('HGET', RESERVED, id)
local reserved_endpoint, reserved_prefill
if reserved then
  reserved_endpoint, reserved_prefill = charge_of(reserved)
end
local is_over = reserved and tonumber(redis.call('ZSCORE', RESERVED_UNTIL, id) or 0) <= now

local rows, endpoints = {}, {}
for at = FIRST, #ARGV, 3 do
  endpoints[#endpoints + 1] = ARGV[at]
  rows[#rows + 1] = { matched = tonumber(ARGV[at + 1]), bias = tonumber(ARGV[at + 2]) }
end
for from = 1, #endpoints, STEP do
  local to = math.min(from + STEP - 1, #endpoints)
  local requests = redis.call('HMGET', N, unpack(endpoints, from, to))
  local prefill = redis.call('HMGET', P, unpack(endpoints, from, to))
  for at = from, to do
    rows[at].requests = tonumber(requests[at - from + 1] or 0)
    rows[at].prefill = tonumber(prefill[at - from + 1] or 0)
  end
end
-- An earlier reservation of this request does not count, whether it is over or kept.
local picked
for at, endpoint in ipairs(endpoints) do
  if endpoint == reserved_endpoint then
    rows[at].requests = rows[at].requests - 1
    rows[at].prefill = rows[at].prefill - reserved_prefill
    picked = at
  end
end
local scores, raws = score(params, rows, chunks)
for at, row in ipairs(rows) do
  row.score = score_weight * scores[at] + row.bias
  row.raw = raws[at]
end

local answer
local function add_to_answer(index)
  local row = rows[index]
  answer[#answer + 1] = index
  answer[#answer + 1] = endpoints[index]
  answer[#answer + 1] = string.format('%.17g', row.score)
  answer[#answer + 1] = string.format('%.17g', row.raw)
  answer[#answer + 1] = row.requests
  answer[#answer + 1] = row.prefill
end

if reserved and not is_over then
  answer = { 'reserved', reserved_prefill }
  if picked then
    add_to_answer(picked)
  else
    local requests = tonumber(redis.call('HGET', N, reserved_endpoint) or 0)
    local prefill = tonumber(redis.call('HGET', P, reserved_endpoint) or 0)
    answer[3], answer[4], answer[5], answer[6] = 0, reserved_endpoint, '0', '0'
    answer[7], answer[8] = requests - 1, prefill - reserved_prefill
  end
else
  local sorted = {}
  for at, row in ipairs(rows) do
    sorted[at] = row.score
  end
  table.sort(sorted, function(a, b)
    return a > b
  end)
  local best = math.max(1, math.floor(percent * #rows / 100))
  local least = sorted[best] - 1e-9
  local lucky = {}
  for at, row in ipairs(rows) do
    if row.score >= least then
      lucky[#lucky + 1] = at
    end
  end
  picked = lucky[math.min(math.floor(random * #lucky) + 1, #lucky)]
  if not endpoints_fit({ endpoints[picked] }, max_endpoints) then
    answer = { 'limit-endpoints' }
  elseif not has_room(is_over and 0 or 1, room) then
    answer = { 'limit-requests' }
  else
    local charge = prefill_charge(charge_kind, length, least_charge, rows[picked].matched, chunks)
    answer = { 'picked', charge }
    add_to_answer(picked)
    redis.call('ZADD', RESERVED_UNTIL, now + reserve_ms, id)
    redis.call('HSET', RESERVED, id, endpoints[picked] .. '|' .. charge)
    change(endpoints[picked], 1, charge)
    if hashes ~= '' then
      redis.call(
        'XADD', LOG, 'MAXLEN', '~', log_length, '*',
        'e', endpoints[picked], 'h', hashes, 'x', speculative_s, 'o', origin
      )
    end
  end
  if is_over then
    change(reserved_endpoint, -1, -reserved_prefill)
    if #answer == 1 then
      redis.call('HDEL', RESERVED, id)
      redis.call('ZREM', RESERVED_UNTIL, id)
    end
  end
  write_changes()
end
if #answer > 1 then
  local others = {}
  for at = 1, #rows do
    if at ~= picked then
      others[#others + 1] = at
    end
  end
  for _ = 2, math.min(count, #others + 1) do
    local first = 1
    for at = 2, #others do
      if rows[others[at]].score > rows[others[first]].score then
        first = at
      end
    end
    add_to_answer(table.remove(others, first))
  end
end
return answer
