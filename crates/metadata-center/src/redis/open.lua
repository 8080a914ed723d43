-- The clusters ARGV[2..] are in use. KEYS[1] is the set of clusters by last use. Says 1 of each that is in it, 0 where
-- there is no room for more.
local max_clusters = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {}
for at = 2, #ARGV do
  local fits = redis.call('ZSCORE', KEYS[1], ARGV[at]) or redis.call('ZCARD', KEYS[1]) < max_clusters
  if fits then
    redis.call('ZADD', KEYS[1], now, ARGV[at])
  end
  answer[#answer + 1] = fits and 1 or 0
end
return answer
